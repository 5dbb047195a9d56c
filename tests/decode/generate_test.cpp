// What is continued: by a model that knows one thing, which byte follows which.

#include "pare/decode/generate.h"

#include <fmt/format.h>

#include <cstdio>

#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/train/samples.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"
#include "tests/support/helpers.h"

namespace pare::test {

namespace {

using Ids = std::vector<TokenId>;

// After each byte of the text comes the next, for sure; no byte stands there twice.
Model follows(const std::string& text, int64_t context = 64) {
  const Architecture a = parse(fmt::format(
      R"({{"width": 256, "vocab": 256, "context": {}, "blocks": [{{"attention": {{"heads": 1, "head_width": 2}}, "mlp": null}}],
          "head": {{"tied": false}}}})",
      context));
  Tensors tensors;
  for (const auto& [name, tensor] : generic_tensors(a)) {
    tensors[name] = at::zeros_like(tensor);
  }
  tensors["embed.token.weight"] = at::eye(256, at::kDouble);
  for (size_t n = 0; n + 1 < text.size(); ++n) {
    tensors["head.weight"][static_cast<unsigned char>(text[n + 1])][static_cast<unsigned char>(text[n])] = 50;
  }
  return {a, as_weights(tensors)};
}

struct Told {
  Generated result;
  std::string shown;
  std::vector<std::string> pieces;
};

// Bytes as SentencePiece has them: a run of them is text if all of it is.
std::string fallback_tokenizer_json() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[fmt::format("<0x{:02X}>", byte)] = byte;
  }
  return nlohmann::json{{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}},
                        {"decoder", {{"type", "ByteFallback"}}}}
      .dump();
}

Told told(const std::string& text, const GenerateOptions& options, int64_t context = 64,
          const std::string& tokenizer_json = byte_tokenizer_json(256)) {
  Decoder decoder(follows(text, context));
  const Tokenizer tokenizer = parse_tokenizer_json(tokenizer_json, "bytes");
  Told told;
  const Shown shown{.text =
                        [&](std::string_view piece) {
                          told.shown += piece;
                          told.pieces.emplace_back(piece);
                        },
                    .token = {}};
  told.result = generate(decoder, &tokenizer, Ids{static_cast<unsigned char>(text[0])}, 0, options, shown);
  return told;
}

int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  REQUIRE(file != nullptr);
  REQUIRE(std::fscanf(file, "%ld %ld", &size, &resident) == 2);
  std::fclose(file);
  return resident * 4096;
}

}  // namespace

TEST_CASE("the decoder's logits are those of the executor, whatever is read at once") {
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Model model{a, as_weights(generic_tensors(a))};
    const Inputs inputs{.ids = random_inputs(a, 1, 9).ids};
    const Executor executor(model, at::kDouble);
    const Ids ids(inputs.ids.const_data_ptr<int64_t>(), inputs.ids.const_data_ptr<int64_t>() + 9);
    Decoder decoder(model, {.dtype = at::kDouble});
    CHECK(decoder.vocab() == 23);
    CHECK(decoder.context() == 32);
    const auto compare = [&](std::span<const float> found, int64_t place) {
      REQUIRE(std::ssize(found) == 23);
      const at::Tensor ours = at::tensor(at::ArrayRef<float>(found.data(), found.size()), at::kFloat).to(at::kDouble);
      // Of these tokens alone: how many there are decides some angles.
      const at::Tensor theirs = executor.forward({.ids = inputs.ids.narrow(1, 0, place + 1)}).logits[0][place];
      CHECK(relative_error(ours, theirs) < 1e-6);
      CHECK(decoder.length() == place + 1);
    };
    for (const size_t prompt : {1, 4, 9}) {  // a new sequence each time
      decoder.reset();
      compare(decoder.prefill(std::span(ids).first(prompt)), static_cast<int64_t>(prompt) - 1);
      for (size_t n = prompt; n < ids.size(); ++n) {
        compare(decoder.step(ids[n]), static_cast<int64_t>(n));
      }
    }
  }
}

TEST_CASE("models that continue no text are refused, with the reason") {
  const auto said = [](const std::string& text) {
    return message_of<InputError>([&] { check_continues_text(parse(text), "'model'"); });
  };
  CHECK(said(ending("masked_lm", "full", "")) ==
        "'model' continues no text: its task is masked_lm, expected causal_lm");
  CHECK(said(ending("classifier", "causal", R"("classes": 3, "pool": "last")")).find("its task is classifier") !=
        std::string::npos);
  CHECK(said(causal(R"(, "mask": "full")")).find("the attention of blocks.0 looks ahead") != std::string::npos);
  CHECK(said(R"({"task": "classifier", "width": 8, "context": 5,
      "embedding": {"position": "learned", "class_token": true, "patch": {"size": 2, "image": 4, "channels": 1}},
      "blocks": [{"attention": {"heads": 2, "head_width": 4, "mask": "full"}}], "head": {"classes": 3}})")
            .find("reads images") != std::string::npos);
  check_continues_text(parse(causal("")), "'model'");
}

TEST_CASE("a text ends where it is told to") {
  const std::string text = "abcdefghijk";
  SUBCASE("the most tokens") {
    const Told t = told(text, {.max_tokens = 4});
    CHECK(t.result.text == "bcde");
    CHECK(t.shown == "bcde");
    CHECK(t.pieces.size() == 4);
    CHECK(t.result.finish == Finish::max_tokens);
    CHECK(t.result.steps == 3);
    CHECK(t.result.log_probabilities.size() == 4);
    CHECK(t.result.log_probabilities[0] == doctest::Approx(0).epsilon(1e-9));
  }
  SUBCASE("the context, and one token that nobody reads") {
    const Told t = told(text, {}, 5);
    CHECK(t.result.text == "bcdef");
    CHECK(t.result.finish == Finish::context);
  }
  SUBCASE("a token that ends texts, which is drawn but has no text") {
    const Told t = told(text, {.ends = {'x', 'e'}});
    CHECK(t.result.text == "bcd");
    CHECK(t.result.tokens == Ids{'b', 'c', 'd', 'e'});
    CHECK(t.result.finish == Finish::end_of_text);
  }
  SUBCASE("a stop string of several tokens, of which nothing is shown") {
    const Told t = told(text, {.stops = {"hij", "efg", "fx"}});
    CHECK(t.result.text == "bcd");
    CHECK(t.shown == "bcd");
    CHECK(t.result.stop == "efg");
    CHECK(t.result.tokens == Ids{'b', 'c', 'd', 'e', 'f', 'g'});
    CHECK(t.result.finish == Finish::stop);
  }
  SUBCASE("what only began like a stop string is shown") {
    const Told t = told(text, {.max_tokens = 6, .stops = {"defX", "efgh"}});
    CHECK(t.result.text == "bcdefg");
    CHECK(t.shown == "bcdefg");
    CHECK(t.result.finish == Finish::max_tokens);
  }
}

TEST_CASE("characters of several bytes are shown whole, and stop a text as soon as they are whole") {
  const std::string text = "aé€b😀c";  // no byte twice
  const Told t = told(text, {.max_tokens = std::ssize(text) - 1});
  CHECK(t.shown == text.substr(1));
  CHECK(t.pieces == std::vector<std::string>{"é", "€", "b", "😀", "c"});
  const Told stopped = told(text, {.stops = {"€"}});
  CHECK(stopped.result.text == "é");
  CHECK(stopped.result.tokens.size() == 5);
  const Told in_run = told(text, {.stops = {"b"}}, 64, fallback_tokenizer_json());
  CHECK(in_run.result.text == "é€");
  CHECK(in_run.shown == "é€");
  CHECK(in_run.result.tokens.size() == 6);
  const Told cut = told(text, {.max_tokens = 3});
  CHECK(cut.result.text == "é\xEF\xBF\xBD");
  CHECK(cut.shown == cut.result.text);
}

TEST_CASE("stop strings in a text") {
  CHECK_FALSE(find_stop("abc", {"x", "cb"}));
  CHECK(find_stop("abcab", {"cab", "ab", "b"})->at == 0);
  CHECK(find_stop("abcab", {"cab", "bc"})->stop == "bc");
  CHECK(unfinished_stop("xaab", {"aba"}) == 2);
  CHECK(unfinished_stop("xaab", {"aba", "aabb"}) == 3);
  CHECK(unfinished_stop("aba", {"aba"}) == 1);  // whole ones were found before
  CHECK(unfinished_stop("xyz", {"a"}) == 0);
  CHECK(unfinished_stop("", {"abc"}) == 0);
}

TEST_CASE("tokens are drawn by the numbers that samples for training are drawn by") {
  const Architecture a = parse(causal("", "null"));
  const Model model{a, as_weights(generic_tensors(a))};
  std::vector<int64_t> samples;
  draw_samples(model, {.count = 3, .model = "", .length = 20, .prefix = {5, 2}, .temperature = 0.9}, 7,
               {at::kFloat, at::kCPU},
               [&](std::span<const int64_t> tokens) { samples.insert(samples.end(), tokens.begin(), tokens.end()); });
  Decoder decoder(model);
  Ids found;
  for (uint64_t sequence = 0; sequence < 3; ++sequence) {
    found.insert(found.end(), {5, 2});
    const Generated result = generate(decoder, nullptr, Ids{5, 2}, sequence,
                                      {.sampling = {.temperature = 0.9}, .seed = 7, .max_tokens = 18});
    found.insert(found.end(), result.tokens.begin(), result.tokens.end());
  }
  CHECK(found == samples);
}

TEST_CASE("a thousand texts hold no more memory than a few") {
#ifdef __SANITIZE_ADDRESS__
  std::puts("skipped the memory of a thousand texts: AddressSanitizer keeps what is freed");
  return;
#endif
  const Architecture a = parse(rotary(R"(, "rope": {})"));
  const Model model{a, as_weights(generic_tensors(a))};
  const Tokenizer tokenizer = parse_tokenizer_json(byte_tokenizer_json(23), "bytes");
  Decoder decoder(model);
  const auto write = [&](uint64_t count) {
    for (uint64_t n = 0; n < count; ++n) {
      generate(decoder, &tokenizer, Ids{1, 2, 3}, n,
               {.sampling = {.temperature = 1, .top_p = 0.9}, .max_tokens = 4, .stops = {"\x05\x06"}});
    }
  };
  write(200);
  const int64_t before = resident_bytes();
  write(1000);
  CHECK(resident_bytes() - before < 2'000'000);  // one cache kept for each text would be 50 MB
}

}  // namespace pare::test
