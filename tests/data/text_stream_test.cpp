#include "pare/data/text_stream.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "pare/data/utf8.h"

using namespace pare;
using nlohmann::json;
using Ids = std::vector<TokenId>;

namespace {

// Words with and without spaces, what steps look for, and 256 bytes as tokens.
Tokenizer with_decoder(const json& decoder, const std::vector<std::string>& words) {
  json vocab = json::object();
  for (const std::string& word : words) {
    vocab[word] = vocab.size();
  }
  const json file = {{"added_tokens", {{{"id", 900}, {"content", "<|end|>"}, {"special", true}}}},
                     {"decoder", decoder},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  return parse_tokenizer_json(file.dump(), "test");
}

std::vector<std::string> byte_words() {
  std::vector<std::string> words = {"▁", "▁a", "b", "▁é"};
  for (const char* byte : {"C3", "A9", "E2", "82", "AC", "F0", "9F", "98", "80", "41", "FF"}) {
    words.push_back("<0x" + std::string(byte) + ">");
  }
  return words;
}

const json llama = {{"type", "Sequence"},
                    {"decoders",
                     {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                      {{"type", "ByteFallback"}},
                      {{"type", "Fuse"}},
                      {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
const json fused_first = {{"type", "Sequence"},
                          {"decoders",
                           {{{"type", "Fuse"}},
                            {{"type", "Replace"}, {"pattern", {{"String", "aab"}}}, {"content", "X"}},
                            {{"type", "Strip"}, {"content", " "}, {"start", 2}, {"stop", 1}}}}};

struct Kind {
  const char* name;
  Tokenizer tokenizer;
};

std::vector<Kind> kinds() {
  std::vector<Kind> list;
  list.push_back({"bytes", parse_tokenizer_json(byte_tokenizer_json(256), "bytes")});
  list.push_back({"byte fallback", with_decoder(llama, byte_words())});
  list.push_back({"spaces", with_decoder({{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}},
                                         {"▁", "▁a", "b", "▁b▁", "c"})});
  list.push_back({"word pieces", with_decoder({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}},
                                              {"a", "##b", ".", "'s", "do not", "n't", "##."})});
  list.push_back(
      {"ends of words", with_decoder({{"type", "BPEDecoder"}, {"suffix", "</w>"}}, {"a</w>", "b", "c</w>", "</w>"})});
  list.push_back({"replaced when fused", with_decoder(fused_first, {"a", "b", "aa", " ", "ab", "c"})});
  list.push_back({"no decoder", with_decoder(nullptr, {"a", "b", "é"})});
  return list;
}

Ids draw_ids(const Tokenizer& tokenizer, size_t count, std::mt19937& random) {
  Ids ids;
  const TokenId end = tokenizer.vocabulary().end();
  while (ids.size() < count) {
    ids.push_back(
        random() % 20 == 0 && tokenizer.has(900) ? 900 : static_cast<TokenId>(random() % static_cast<uint64_t>(end)));
    if (end == 256 && random() % 2 == 0) {  // else hardly ever a character of several bytes
      for (const unsigned char byte : std::string("é€😀").substr(0, 2 + random() % 8)) {
        ids.push_back(byte);
      }
    }
  }
  return ids;
}

}  // namespace

TEST_CASE("a text that comes token by token is the text of all tokens, and no piece ends within a character") {
  std::mt19937 random(1);
  for (const auto& [name, tokenizer] : kinds()) {
    CAPTURE(std::string(name));
    int64_t in_pieces = 0, joined = 0;
    for (int draw = 0; draw < 300; ++draw) {
      const Ids ids = draw_ids(tokenizer, 1 + random() % 12, random);
      const size_t begin = random() % (ids.size() + 1);
      const Ids prompt(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(begin));
      TextStream stream(tokenizer, prompt);
      std::string text;
      for (size_t n = begin; n < ids.size(); ++n) {
        const std::string piece = stream.add(ids[n]);
        CHECK_FALSE(invalid_utf8(piece));
        in_pieces += piece.empty() ? 0 : 1;
        text += piece;
      }
      text += stream.rest();
      const std::string whole = tokenizer.decode(ids), before = tokenizer.decode(prompt);
      CAPTURE(whole);
      CAPTURE(before);
      if (whole.starts_with(before)) {
        CHECK(before + text == whole);
        ++joined;
      } else {  // bytes of the prompt became others with what followed: all of them are said again
        CHECK(text == whole.substr(tokenizer.decode(prompt, true, TextEnd::open).size()));
      }
    }
    CHECK(in_pieces > 200);
    CHECK(joined > 150);
  }
}

TEST_CASE("what is certain of a text stays, whatever follows") {
  std::mt19937 random(2);
  for (const auto& [name, tokenizer] : kinds()) {
    CAPTURE(std::string(name));
    for (int draw = 0; draw < 300; ++draw) {
      const Ids ids = draw_ids(tokenizer, 2 + random() % 8, random);
      const Ids first(ids.begin(), ids.begin() + 1 + static_cast<std::ptrdiff_t>(random() % (ids.size() - 1)));
      CHECK(tokenizer.decode(ids).starts_with(tokenizer.decode(first, true, TextEnd::open)));
    }
  }
}

TEST_CASE("ids that are no tokens have no text") {
  const Tokenizer tokenizer = with_decoder(llama, byte_words());
  TextStream stream(tokenizer, {});
  std::string text;
  for (const TokenId id : Ids{5000, 1, 5000, 2, -1, 2}) {
    text += stream.add(id);
  }
  CHECK(text + stream.rest() == "abb");
}
