// Runs that start from a model: what is taken and what is not, and what is morphed, ended at any step and continued.

#include "pare/train/start.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>

#include "pare/train/run_folder.h"
#include "pare/train/train.h"
#include "tests/model/helpers.h"
#include "tests/support/helpers.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

struct Ended {};

TrainResult run_from(const TrainConfig& config, const std::filesystem::path& folder, bool resume = false,
                     int64_t ended_at = -1, std::string* notes = nullptr) {
  TrainOptions options{.folder = folder, .resume = resume};
  options.report = [ended_at](const TrainProgress& progress) {
    if (progress.step == ended_at) {
      throw Ended{};
    }
  };
  options.note = [notes](const std::string& note) { notes ? void(*notes += note) : void(); };
  return train(config, open_sequences(config), options);
}

TrainConfig stored_config(const std::filesystem::path& run) {
  return RunFolder(run).config();  // whose lock is gone when it is read
}

// A small model with norms, stored.
std::string normed_folder(const TemporaryFolder& folder, const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json json = sorting_json()["architecture"];
  json["blocks"][0]["attention"]["norm"] = {{"kind", "rms"}};
  json["blocks"][0]["mlp"]["norm"] = {{"kind", "layer"}, {"bias", true}};
  json["final_norm"] = {{"kind", "rms"}};
  json["head"] = {{"tied", true}};
  json.merge_patch(changes);
  const Architecture a = architecture_from_json(json, "test");
  const std::filesystem::path path = folder.path() / "source";
  write_native_model(path, {a, random_weights(a, 5, Dtype::f32, Draw::plain)}, true, 1 << 30);
  return path.string();
}

nlohmann::json from_json(const std::string& source) {
  return {{"architecture", nullptr},
          {"from", source},
          {"steps", 14},
          {"batch", 4},
          {"optimiser", {{"warmup", 3}, {"lr", 3e-3}, {"min_lr", 1e-3}}},
          {"evaluate", {{"every", 5}, {"batches", 2}}},
          {"checkpoint", {{"every", 4}, {"keep", 0}}}};
}

TrainConfig config_from(const std::string& source, const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json json = from_json(source);
  json.merge_patch(changes);
  return sorting_config(json);
}

}  // namespace

TEST_CASE("a run starts as the model that it starts from") {
  const TemporaryFolder folder;
  const std::string source = normed_folder(folder);
  const TrainConfig config = config_from(source);
  std::string notes;
  run_from(config, folder.path() / "run", false, -1, &notes);
  CHECK(notes.find("21 of 21 tensors taken") != std::string::npos);
  const ModelFolder model = open_model(source), start = open_model(folder.path() / "run/checkpoints/0");
  CHECK((start.model.architecture == model.model.architecture));
  for (const auto& [name, weight] : model.model.weights) {
    CHECK(start.model.weights.at(name).load().equal(weight.load()));
  }
  const nlohmann::json manifest = RunFolder(folder.path() / "run").source();
  CHECK(manifest["from"]["sha256"]["model.safetensors"] == file_hashes(model).at("model.safetensors"));
  CHECK(manifest["from"]["not_taken"].empty());
  const std::filesystem::path moved = folder.path() / "moved";
  std::filesystem::rename(source, moved);  // it is not needed again
  CHECK(run_from(stored_config(folder.path() / "run"), folder.path() / "run", true).resumed_from == 14);
}

TEST_CASE("what has another shape or is not there is drawn, and what is left over is named") {
  const TemporaryFolder folder;
  const std::string source = normed_folder(folder);
  nlohmann::json wider = sorting_json()["architecture"];
  wider["blocks"][0]["mlp"]["width"] = 40;
  const TrainConfig config = config_from(source, {{"architecture", wider}});
  const Inputs sample{.ids = at::zeros({1, 4}, at::kLong)};
  const Start start = start_of_run(config, sample);
  const Model drawn = start_of_run(sorting_config({{"architecture", wider}}), sample).model;
  const Model own = open_model(source).model;
  CHECK(start.model.weights.at("blocks.1.attention.key.weight")
            .load()
            .equal(own.weights.at("blocks.1.attention.key.weight").load()));
  CHECK(
      start.model.weights.at("blocks.1.mlp.up.weight").load().equal(drawn.weights.at("blocks.1.mlp.up.weight").load()));
  CHECK(start.model.weights.at("head.weight").load().equal(own.weights.at("embed.token.weight").load()));  // untied
  CHECK(start.note.find("norm.weight") != std::string::npos);
  CHECK(start.note.find("(it is [32, 16] there, [40, 16] here)") != std::string::npos);
  CHECK(start.manifest["from"]["drawn"].size() == 4);
  CHECK(start.manifest["from"]["not_taken"].size() == 4 + 7);
  nlohmann::json other = wider;
  other["width"] = 32;
  other["embedding"] = nlohmann::json::object();
  other["vocab"] = 17;
  other["blocks"][0] = {{"attention", {{"heads", 2}, {"head_width", 8}}},
                        {"mlp", {{"width", 33}, {"activation", "gelu"}}}};
  const std::string why = message_of<InputError>([&] {
    start_of_run(config_from(source, {{"architecture", other}}), sample);
  });
  CHECK(why.find("has no tensor that this Architecture has in the same shape") != std::string::npos);
}

TEST_CASE("a morph that is ended at any step and continued is the one that was not") {
  const TemporaryFolder folder;
  const std::string source = normed_folder(folder);
  const nlohmann::json changes = {
      {"teacher", source},
      {"distillation", {{"weight", 0.4}, {"temperature", 1.5}}},
      {"morph", {{"to", {{"norms", "none"}, {"attention", {{"skip", false}}}}}, {"steps", 9}}}};
  for (const char* dtype : {"float32", "bfloat16"}) {
    CAPTURE(dtype);
    nlohmann::json own = changes;
    own["dtype"] = dtype;
    const TrainConfig config = config_from(source, own);
    const std::filesystem::path whole = folder.path() / (std::string("whole-") + dtype);
    const TrainResult result = run_from(config, whole);
    CHECK((open_model(whole / "checkpoints/8").model.architecture == config.architecture));
    const ModelFolder last = open_model(whole / "checkpoints/12");
    CHECK((last.model.architecture == *config.morph.to));
    CHECK(result.parameters == 2 * (4 * 256 + 2 * 512) + 16 * 16 + 32 * 16);
    for (const int64_t step : {3, 7, 9, 13}) {
      CAPTURE(step);
      const std::filesystem::path broken = folder.path() / (dtype + std::to_string(step));
      CHECK_THROWS_AS(run_from(config, broken, false, step), Ended);
      CHECK(run_from(stored_config(broken), broken, true).resumed_from == step / 4 * 4);
      CHECK(curve(broken) == curve(whole));
      CHECK(bytes_of_file(broken / "checkpoints/14/model.safetensors") ==
            bytes_of_file(whole / "checkpoints/14/model.safetensors"));
    }
  }
}

TEST_CASE("the last step of a morph leaves the new Architecture, and no jump") {
  const TemporaryFolder folder;
  const std::string source = normed_folder(folder);
  const TrainConfig config = config_from(source, {{"steps", 40},
                                                  {"dtype", "float64"},
                                                  {"evaluate", {{"every", 1}}},
                                                  {"morph", {{"to", {{"norms", "none"}}}, {"steps", 30}}}});
  run_from(config, folder.path() / "run");
  std::vector<double> validation;
  for (const nlohmann::json& line : read_metrics(folder.path() / "run")) {
    if (line.contains("validation")) {
      validation.push_back(line["validation"].get<double>());
    }
  }
  REQUIRE(validation.size() == 41);
  for (size_t i = 1; i < validation.size(); ++i) {
    CHECK(std::abs(validation[i] - validation[i - 1]) < 0.1);
  }
  CHECK(validation.back() < validation.front());
}

TEST_CASE("a teacher that changed, and keys that make no sense") {
  const TemporaryFolder folder;
  const std::string source = normed_folder(folder);
  const TrainConfig config = config_from(source, {{"teacher", source}});
  CHECK_THROWS_AS(run_from(config, folder.path() / "run", false, 5), Ended);
  const Architecture a = config.architecture;
  write_native_model(source, {a, random_weights(a, 6, Dtype::f32, Draw::plain)}, true, 1 << 30);
  CHECK(message_of<InputError>([&] { run_from(config, folder.path() / "run", true); }).find("another teacher") !=
        std::string::npos);
  const auto says = [&](const nlohmann::json& changes, const std::string& wanted) {
    const std::string found = message_of<InputError>([&] { config_from(source, changes); });
    CAPTURE(found);
    CHECK(found.find(wanted) != std::string::npos);
  };
  says({{"morph", {{"steps", 5}}}}, "morph.to: nothing is there to become");
  says({{"morph", {{"to", {{"norms", "none"}}}}}}, "morph.steps: 0 is not between 1 and steps, 14");
  says({{"morph", {{"to", {{"norms", "none"}}}, {"steps", 15}}}}, "morph.steps: 15");
  says({{"morph", {{"too", 1}}}}, "did you mean 'to'?");
  says({{"from", ""}}, "architecture: is required, or a model to start from");
  says({{"from", "/nowhere"}}, "/nowhere");
  says({{"distillation", {{"weight", 1.5}}}}, "distillation.weight: 1.5 is more than 1");
  says({{"distillation", {{"temperature", 0}}}}, "distillation.temperature");
  const std::string refused = message_of<InputError>([&] {
    run_from(config_from(source, {{"morph", {{"to", {{"vocab", 7}}}, {"steps", 3}}}}), folder.path() / "no");
  });
  CHECK(refused.find("vocab: 16 cannot be turned into 7") != std::string::npos);
  CHECK(!std::filesystem::exists(folder.path() / "no"));  // before anything was written
}

}  // namespace pare::test
