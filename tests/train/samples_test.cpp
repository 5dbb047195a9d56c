// What a model draws: the shares that its logits have, whoever asks and in whatever portions; and how it is learned
// from.

#include "pare/train/samples.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "pare/arch/architecture_json.h"
#include "pare/model/executor.h"
#include "pare/train/batches.h"
#include "pare/train/sequences.h"
#include "pare/train/token_shards.h"
#include "tests/model/helpers.h"
#include "tests/support/helpers.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

Architecture small_decoder(int64_t vocab = 7) {
  return architecture_from_json(
      {{"width", 8},
       {"vocab", vocab},
       {"context", 12},
       {"blocks",
        {{{"repeat", 2},
          {"attention", {{"heads", 2}, {"kv_heads", 1}, {"head_width", 4}, {"rope", {{"width", 4}}}}},
          {"mlp", {{"width", 12}, {"activation", "silu"}, {"gated", true}}}}}}},
      "test");
}

at::Tensor drawn(const Model& model, const SamplesConfig& samples, uint64_t seed = 5) {
  std::vector<int64_t> tokens;
  draw_samples(model, samples, seed, {at::kFloat, at::kCPU},
               [&](std::span<const int64_t> more) { tokens.insert(tokens.end(), more.begin(), more.end()); });
  return at::tensor(tokens).view({samples.count, samples.length});
}

Model generic_model(const Architecture& a) {
  return {a, as_weights(generic_tensors(a, 3))};
}

// A folder that a run can start from.
std::string stored(const TemporaryFolder& folder, const Architecture& a) {
  write_native_model(folder.path() / "model", generic_model(a), false, uint64_t{1} << 30);
  return (folder.path() / "model").string();
}

}  // namespace

TEST_CASE("each token is drawn with the probability that a forward pass without a cache gives it") {
  const Model model = generic_model(small_decoder());
  for (const double temperature : {1.0, 0.4}) {
    const SamplesConfig samples{.count = 20'000, .length = 4, .prefix = {2, 5}, .temperature = temperature};
    const at::Tensor tokens = drawn(model, samples);
    CHECK((tokens.select(1, 0) == 2).all().item<bool>());
    CHECK((tokens.select(1, 1) == 5).all().item<bool>());
    const Executor executor(model, at::kDouble);
    const auto chi_square = [&](const at::Tensor& rows, int64_t place) {
      const at::Tensor logits = executor.forward({.ids = rows.narrow(0, 0, 1).narrow(1, 0, place)}).logits;
      const at::Tensor expected =
          at::softmax(logits.select(0, 0).select(0, place - 1) / temperature, 0) * static_cast<double>(rows.size(0));
      const at::Tensor found = at::bincount(rows.select(1, place), {}, model.architecture.vocab).to(at::kDouble);
      return ((found - expected).square() / expected).sum().item<double>();
    };
    // Seven classes: 99.9 % of draws stay below 22.5.
    CHECK(chi_square(tokens, 2) < 22.5);
    const at::Tensor third = tokens.select(1, 2), usual = std::get<0>(third.mode());
    const at::Tensor often = tokens.index_select(0, (third == usual).nonzero().squeeze(1));
    CHECK(often.size(0) > 2000);
    CHECK(chi_square(often, 3) < 22.5);
  }
}

TEST_CASE("a sequence depends on its seed and number alone, not on how many are drawn at once") {
  const Model model = generic_model(small_decoder());
  SamplesConfig samples{.count = 300, .length = 13, .prefix = {1}};
  const at::Tensor many = drawn(model, samples);  // more than one portion
  samples.count = 9;
  CHECK(drawn(model, samples).equal(many.narrow(0, 0, 9)));
  CHECK(!drawn(model, samples, 6).equal(many.narrow(0, 0, 9)));
  CHECK(std::get<0>(at::_unique(many.select(1, 6))).size(0) > 1);
}

TEST_CASE("samples are shards of sequences, each of which begins a window") {
  const TemporaryFolder folder;
  const std::string model = stored(folder, small_decoder());
  nlohmann::json json = {{"from", model}, {"data", {{"samples", {{"count", 20}, {"prefix", {3}}}}}}};
  const auto config_of = [](const nlohmann::json& written) {
    return train_config_from_json(written, "test", no_architecture);
  };
  const PreparedShards made = write_shards(config_of(json), folder.path() / "samples");
  CHECK(made.train_tokens == 20 * 13);
  const nlohmann::json manifest = nlohmann::json::parse(bytes_of_file(folder.path() / "samples/tokens.json"));
  CHECK(manifest["sequence"] == 13);
  CHECK(manifest["sources"]["train"][0]["drawn"]["prefix"] == nlohmann::json({3}));
  CHECK(manifest["sources"]["train"][0]["sha256"].contains("model.safetensors"));
  nlohmann::json learned = {{"from", model}, {"data", {{"shards", (folder.path() / "samples").string()}}}};
  const auto sequences = open_sequences(config_of(learned));
  CHECK(sequences->training() == 18);
  CHECK(sequences->validation() == 2);
  const at::Tensor all = drawn(generic_model(small_decoder()), {.count = 20, .length = 13, .prefix = {3}}, 0);
  const TrainBatch batch = sequences->batch(false, {0, 17}, 0), last = sequences->batch(true, {1}, 0);
  CHECK(batch.inputs.ids.equal(all.index_select(0, at::tensor({0, 17})).narrow(1, 0, 12)));
  CHECK(batch.targets.equal(all.index_select(0, at::tensor({0, 17})).narrow(1, 1, 12)));
  CHECK(last.inputs.ids.equal(all.narrow(0, 19, 1).narrow(1, 0, 12)));
  nlohmann::json touched = manifest;
  touched["sequence"] = 26;
  folder.write("samples/tokens.json", touched.dump());
  CHECK(says(message_of<InputError>([&] { open_sequences(config_of(learned)); }),
             "has 260 tokens in sequences of 26, which were drawn with 13 each"));
  folder.write("samples/tokens.json", manifest.dump());
  // Measured on a text of somebody else, in windows like any other.
  nlohmann::json beside = json;
  beside["data"]["validation"] = {
      folder.write("text", std::string("\1\2\3\4\5\6\1\2\3\4\5\6\1\2\3\4\5\6\1\2\3\4\5\6\1", 25)).string()};
  CHECK(write_shards(config_of(beside), folder.path() / "beside").validation_tokens == 25);
  const auto measured =
      open_sequences(config_of({{"from", model}, {"data", {{"shards", (folder.path() / "beside").string()}}}}));
  CHECK(measured->training() == 20);
  CHECK(measured->validation() == 2);
  CHECK(measured->batch(false, {19}, 0).inputs.ids.equal(last.inputs.ids));
  CHECK(measured->batch(true, {1}, 0).targets[0].equal(at::tensor({2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1}, at::kLong)));
  learned["context"] = 5;
  CHECK(open_sequences(config_of(learned))->batch(false, {4}, 0).inputs.ids.equal(all.narrow(0, 4, 1).narrow(1, 0, 5)));
  json["data"]["samples"]["length"] = 9;
  write_shards(config_of(json), folder.path() / "short");
  learned.erase("context");
  learned["data"]["shards"] = (folder.path() / "short").string();
  CHECK(says(message_of<InputError>([&] { open_sequences(config_of(learned)); }), "context=8 reads them"));
}

TEST_CASE("what cannot be drawn is refused with what to do") {
  const TemporaryFolder folder;
  const std::string model = stored(folder, small_decoder());
  const auto refusal = [&](const nlohmann::json& samples, const nlohmann::json& more = nlohmann::json::object()) {
    nlohmann::json json = {{"from", model}, {"data", {{"samples", samples}}}};
    json.merge_patch(more);
    return message_of<InputError>(
        [&] { write_shards(train_config_from_json(json, "test", no_architecture), folder.path() / "none"); });
  };
  CHECK(says(refusal({{"count", 2}}), "says what a text begins with: name the tokens"));
  CHECK(says(refusal({{"count", 2}, {"prefix", {7}}}), "7 is no token of a vocabulary of 7"));
  CHECK(says(refusal({{"count", 2}, {"prefix", {-1}}}), "data.samples.prefix: -1 is less than 0"));
  CHECK(says(refusal({{"count", 2}, {"prefix", {1}}, {"length", 14}}),
             "14 tokens, but the model reads 12, and draws one more"));
  CHECK(says(refusal({{"count", 2}, {"prefix", {1, 2}}, {"length", 2}}), "leave nothing to draw after a prefix of 2"));
  CHECK(says(refusal({{"count", 2}, {"temperature", 0}}), "data.samples.temperature"));
  CHECK(says(refusal({{"count", 2}, {"prefix", {1}}}, {{"data", {{"train", {"text"}}}}}), "drawn instead of"));
  const TrainConfig unprepared = train_config_from_json(
      {{"from", model}, {"data", {{"samples", {{"count", 2}, {"prefix", {1}}}}}}}, "test", no_architecture);
  CHECK(says(message_of<InputError>([&] { open_sequences(unprepared); }), "--prepare and -o SAMPLES"));
  CHECK(!std::filesystem::exists(folder.path() / "none"));
}

}  // namespace pare::test
