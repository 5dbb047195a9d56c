// Run folders: what ends a run and what continues it gives the same numbers, bit for bit.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "pare/checkpoint/model_folder.h"
#include "pare/support/interrupt.h"
#include "pare/train/initialise.h"
#include "pare/train/run_folder.h"
#include "pare/train/train.h"
#include "tests/support/helpers.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

struct Killed {};

nlohmann::json short_run() {
  return {{"steps", 14},
          {"batch", 4},
          {"optimiser", {{"warmup", 3}}},
          {"evaluate", {{"every", 5}, {"batches", 2}}},
          {"checkpoint", {{"every", 4}}}};
}

TrainResult run(const TrainConfig& config, const std::filesystem::path& folder, bool resume = false,
                int64_t killed_at = -1) {
  TrainOptions options{.folder = folder, .resume = resume};
  options.report = [killed_at](const TrainProgress& progress) {
    if (progress.step == killed_at) {
      throw Killed{};
    }
  };
  return train(config, open_sequences(config), options);
}

// Ctrl-C is heard while one stands, and forgotten with it.
struct Interruptible {
  Interruptible() { install_interrupt_handler(InterruptNotice::silent); }
  ~Interruptible() {
    forget_interrupt();
    ::signal(SIGHUP, SIG_DFL);
  }
};

void interrupt_at(int64_t step, const TrainConfig& config, const std::filesystem::path& folder) {
  const Interruptible interruptible;
  TrainOptions options{.folder = folder};
  options.report = [step](const TrainProgress& progress) { progress.step == step ? void(::raise(SIGINT)) : void(); };
  CHECK_THROWS_AS(train(config, open_sequences(config), options), Interrupted);
}

double sum_of_weights(const Trainer& trainer) {
  double sum = 0;
  for (const auto& [name, weight] : trainer.model().weights) {
    sum += weight.load().abs().sum().item<double>();
  }
  return sum;
}

}  // namespace

TEST_CASE("a run that is ended at any step and continued is the run that was not") {
  const TemporaryFolder folder;
  const TrainConfig config = sorting_config(short_run());
  run(config, folder.path() / "whole");
  const std::string expected = curve(folder.path() / "whole");
  CHECK(std::count(expected.begin(), expected.end(), '\n') == 14 + 4);  // measured at 0, 5, 10 and 14
  for (const int64_t step : {1, 4, 6, 13}) {
    CAPTURE(step);
    const std::filesystem::path broken = folder.path() / std::to_string(step);
    CHECK_THROWS_AS(run(config, broken, false, step), Killed);
    const TrainResult result = run(config, broken, true);
    CHECK(result.resumed_from == step / 4 * 4);
    CHECK(curve(broken) == expected);
    double passed = 0;  // the time of a run goes on as well
    for (const nlohmann::json& line : read_metrics(broken)) {
      CHECK(line.value("seconds", passed) >= passed);
      passed = line.value("seconds", passed);
    }
    CHECK(result.seconds >= passed);
    CHECK(bytes_of_file(broken / "checkpoints/14/model.safetensors") ==
          bytes_of_file(folder.path() / "whole/checkpoints/14/model.safetensors"));
  }
  CHECK(run(config, folder.path() / "whole", true).resumed_from == 14);  // nothing is left to do
  CHECK(curve(folder.path() / "whole") == expected);
}

TEST_CASE("so is one that leaves numbers out at random") {
  const TemporaryFolder folder;
  nlohmann::json json = short_run();
  json.merge_patch({{"accumulate", 2}, {"dropout", {{"embedding", 0.1}, {"attention", 0.2}, {"residual", 0.1}}}});
  const TrainConfig config = sorting_config(json);
  run(config, folder.path() / "whole");
  CHECK_THROWS_AS(run(config, folder.path() / "broken", false, 7), Killed);
  CHECK(run(config, folder.path() / "broken", true).resumed_from == 4);
  CHECK(curve(folder.path() / "broken") == curve(folder.path() / "whole"));
  CHECK(bytes_of_file(folder.path() / "broken/checkpoints/14/model.safetensors") ==
        bytes_of_file(folder.path() / "whole/checkpoints/14/model.safetensors"));
}

TEST_CASE("so is one that goes on with layers that are run again, or without") {
  const TemporaryFolder folder;
  nlohmann::json json = short_run();
  json["dropout"] = {{"residual", 0.1}};
  const TrainConfig kept = sorting_config(json);
  json["recompute"] = true;
  const TrainConfig again = sorting_config(json);
  run(kept, folder.path() / "whole");
  for (const bool first : {true, false}) {
    const std::filesystem::path path = folder.path() / (first ? "first" : "then");
    CHECK_THROWS_AS(run(first ? again : kept, path, false, 7), Killed);
    CHECK(run(first ? kept : again, path, true).resumed_from == 4);
    CHECK(curve(path) == curve(folder.path() / "whole"));
    CHECK(bytes_of_file(path / "checkpoints/14/model.safetensors") ==
          bytes_of_file(folder.path() / "whole/checkpoints/14/model.safetensors"));
  }
}

TEST_CASE("so is one that turns into another model, interrupted before and after it has") {
  const TemporaryFolder folder;
  nlohmann::json json = short_run();
  json["morph"] = {{"to", {{"mlp", {{"skip", false}}}}}, {"steps", 9}};
  const TrainConfig config = sorting_config(json);
  run(config, folder.path() / "whole");
  for (const int64_t step : {8, 9, 10}) {
    CAPTURE(step);
    const std::filesystem::path path = folder.path() / std::to_string(step);
    interrupt_at(step, config, path);
    const Architecture now = open_model(RunFolder(path).checkpoint_path(step)).model.architecture;
    CHECK(now.blocks[0].mlp->skip == (step < 9));
    CHECK(run(config, path, true).resumed_from == step);
    CHECK(curve(path) == curve(folder.path() / "whole"));
    CHECK(bytes_of_file(path / "checkpoints/14/model.safetensors") ==
          bytes_of_file(folder.path() / "whole/checkpoints/14/model.safetensors"));
  }
}

TEST_CASE("so is one in bfloat16 over a text, whose weights are wider than its arithmetic") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += static_cast<char>('a' + i * i % 23);
  }
  nlohmann::json json = short_run();
  json.merge_patch({{"task", "causal_lm"},
                    {"dtype", "bfloat16"},
                    {"accumulate", 2},
                    {"data", {{"train", {folder.write("text", text).string()}}}},
                    {"architecture", {{"vocab", 128}, {"head", {{"tied", true}}}}}});
  const TrainConfig config = sorting_config(json);
  run(config, folder.path() / "whole");
  CHECK_THROWS_AS(run(config, folder.path() / "broken", false, 6), Killed);
  run(config, folder.path() / "broken", true);
  CHECK(curve(folder.path() / "broken") == curve(folder.path() / "whole"));
  CHECK((open_model(folder.path() / "broken/checkpoints/14").dtype == Dtype::f32));
}

TEST_CASE("every task learns") {
  const TemporaryFolder folder;
  std::string periodic, lines;
  for (int i = 0; i < 4000; ++i) {
    periodic += static_cast<char>('a' + i % 7);
  }
  for (int i = 0; i < 200; ++i) {
    const std::string text = std::string(static_cast<size_t>(1 + i % 5), i % 3 == 0 ? 'x' : 'y');
    lines += nlohmann::json{{"text", text}, {"label", i % 3 == 0 ? 1 : 0}}.dump() + "\n";
  }
  const nlohmann::json quick = {{"steps", 80},
                                {"batch", 8},
                                {"optimiser", {{"lr", 1e-2}, {"min_lr", 1e-3}, {"warmup", 5}}},
                                {"evaluate", {{"every", 80}, {"batches", 3}}}};
  const nlohmann::json seeing = {{{"repeat", 2},
                                  {"attention", {{"heads", 2}, {"head_width", 8}, {"mask", "full"}}},
                                  {"mlp", {{"width", 32}, {"activation", "gelu"}}}}};
  const std::map<std::string, nlohmann::json> tasks = {
      {"causal_lm",
       {{"data", {{"train", {folder.write("periodic", periodic).string()}}}}, {"architecture", {{"vocab", 128}}}}},
      {"masked_lm",
       {{"data", {{"train", {(folder.path() / "periodic").string()}}, {"mask_token", 0}}},
        {"architecture", {{"vocab", 128}, {"task", "masked_lm"}, {"blocks", seeing}}}}},
      {"classifier",
       {{"data", {{"train", {folder.write("lines", lines).string()}}}},
        {"architecture", {{"vocab", 128}, {"task", "classifier"}, {"head", {{"classes", 2}}}, {"blocks", seeing}}}}},
      {"copying", {{"data", {{"length", 2}, {"symbols", 3}}}}},
      {"addition", {{"data", {{"length", 1}}}}}};
  for (const auto& [task, changes] : tasks) {
    CAPTURE(task);
    nlohmann::json json = quick;
    json.merge_patch(changes);
    json["task"] = task;
    const TrainResult result = run(sorting_config(json), folder.path() / ("run-" + task));
    const std::vector<nlohmann::json> metrics = read_metrics(folder.path() / ("run-" + task));
    CHECK(metrics.front().at("step") == 0);
    CHECK(result.validation < 0.7 * metrics.front().at("validation").get<double>());
  }
}

TEST_CASE("half a line at the end of the metrics is no obstacle") {
  const TemporaryFolder folder;
  const TrainConfig config = sorting_config(short_run());
  run(config, folder.path() / "whole");
  CHECK_THROWS_AS(run(config, folder.path() / "broken", false, 6), Killed);
  std::ofstream(folder.path() / "broken/metrics.jsonl", std::ios::app) << R"({"step": 7, "lo)";
  run(config, folder.path() / "broken", true);
  CHECK(curve(folder.path() / "broken") == curve(folder.path() / "whole"));
}

TEST_CASE("checkpoints are models, the start stays and so do the last ones") {
  const TemporaryFolder folder;
  const TrainConfig config = sorting_config(short_run());
  run(config, folder.path() / "run");
  CHECK(RunFolder(folder.path() / "run").checkpoints() == std::vector<int64_t>{0, 12, 14});
  const ModelFolder model = open_model(folder.path() / "run/checkpoints/14");
  CHECK(model.warnings.empty());
  CHECK(model.model.architecture == config.architecture);
}

// Continues a copy of a run that somebody changed. What it warned of comes before what it threw.
std::string after(const std::filesystem::path& whole, const std::filesystem::path& copy, const TrainConfig& config,
                  const std::function<void(const std::filesystem::path&)>& change) {
  std::filesystem::remove_all(copy);
  std::filesystem::copy(whole, copy, std::filesystem::copy_options::recursive);
  change(copy);
  std::string said;
  TrainOptions options{.folder = copy, .resume = true};
  options.warn = [&](const std::string& text) { said += text + "\n"; };
  try {
    said += "from " + std::to_string(train(config, open_sequences(config), options).resumed_from);
  } catch (const InputError& error) {
    said += error.what();
  }
  return said;
}

TEST_CASE("a checkpoint that is not whole is left out, and one that cannot be of this run is refused") {
  const TemporaryFolder folder;
  const TrainConfig config = sorting_config(short_run());
  const std::filesystem::path whole = folder.path() / "whole", copy = folder.path() / "copy";
  run(config, whole);
  const auto file = [](const std::filesystem::path& run, const char* name) { return run / "checkpoints/14" / name; };
  const auto says = [&](const std::function<void(const std::filesystem::path&)>& change, const char* part) {
    const std::string said = after(whole, copy, config, change);
    CHECK_MESSAGE(said.find(part) != std::string::npos, said);
    return said;
  };
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json", ""}) {  // "": all of them
    CAPTURE(name);
    const std::string said = says(
        [&](const std::filesystem::path& run) {
          std::filesystem::remove_all(file(run, name));
          std::filesystem::create_directories(file(run, ""));
        },
        "checkpoints/14' is not whole, so it is left out");
    CHECK_MESSAGE(said.ends_with("from 12"), said);
    CHECK(curve(copy) == curve(whole));
    CHECK(bytes_of_file(file(copy, "model.safetensors")) == bytes_of_file(file(whole, "model.safetensors")));
    CHECK(RunFolder(copy).checkpoints() == std::vector<int64_t>{0, 12, 14});
  }
  says([&](const auto& run) { std::filesystem::resize_file(file(run, "model.safetensors"), 900); }, "from 12");
  says([&](const auto& run) { std::filesystem::resize_file(run / "metrics.jsonl", 0); },
       "has the steps up to 0 only: was it cut or edited?");
  says([](const auto& run) { std::filesystem::rename(run / "checkpoints/14", run / "checkpoints/999"); },
       "checkpoints/999' is beyond the 14 steps of this run");
  says([](const auto& run) { std::filesystem::rename(run / "checkpoints/14", run / "checkpoints/13"); },
       "checkpoints/13' holds the state of an optimiser after step '14'");
  says(
      [&](const auto& run) {
        std::filesystem::copy_file(run / "checkpoints/12/optimizer.safetensors", file(run, "optimizer.safetensors"),
                                   std::filesystem::copy_options::overwrite_existing);
      },
      "holds the state of an optimiser after step '12'");
  says(
      [&](const auto& run) {
        std::filesystem::copy_file(run / "checkpoints/12/model.safetensors", file(run, "model.safetensors"),
                                   std::filesystem::copy_options::overwrite_existing);
      },
      "holds the state of an optimiser for other weights");
  says(
      [](const auto& run) {
        for (const char* step : {"0", "12", "14"}) {
          std::filesystem::remove(run / "checkpoints" / step / "config.json");
        }
      },
      "has no checkpoint that is whole");
}

TEST_CASE("a run is not begun twice, not continued as another, and not by two at once") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "run";
  const TrainConfig config = sorting_config(short_run());
  run(config, path);
  const std::string twice = message_of<InputError>([&] { run(config, path); });
  CHECK_MESSAGE(
      twice.find("exists already: choose another folder, or continue the run in it with --resume") != std::string::npos,
      twice);
  nlohmann::json other = short_run();
  other["optimiser"]["lr"] = 0.5;
  const std::string differs = message_of<InputError>([&] { run(sorting_config(other), path, true); });
  CHECK(differs.find("it differs in optimiser.lr") != std::string::npos);
  other = short_run();
  other["checkpoint"]["every"] = 3;
  CHECK_NOTHROW(run(sorting_config(other), path, true));  // changes nothing that is computed
  const RunFolder open(path);
  CHECK(message_of<InputError>([&] { run(config, path, true); }).find("is in use") != std::string::npos);
}

TEST_CASE("a run whose loss explodes stops, says where and why, and keeps its last checkpoint") {
  const TemporaryFolder folder;
  nlohmann::json json = short_run();
  json["steps"] = 200;
  json["optimiser"] = {{"lr", 1e4}, {"min_lr", 1e3}, {"warmup", 0}, {"clip", 0}};
  const std::string message = message_of<InputError>([&] { run(sorting_config(json), folder.path() / "run"); });
  for (const char* part : {"training stopped: after step", "likely cause: the learning rate", "optimiser.clip is 0",
                           "layer", "What last measured well, step 0 (validation"}) {
    CAPTURE(part);
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
  CHECK_NOTHROW(open_model(folder.path() / "run/checkpoints/0"));
  json["stop_above"] = 0.1;
  const std::string first = message_of<InputError>([&] { run(sorting_config(json), folder.path() / "first"); });
  CHECK_MESSAGE(first.find("likely cause: the start itself") != std::string::npos, first);
}

TEST_CASE("what is kept of a run that explodes was measured before it did, and measures the same again") {
  const TemporaryFolder folder;
  nlohmann::json json = short_run();
  json.merge_patch({{"steps", 60}, {"checkpoint", {{"every", 100}}}});
  json["optimiser"] = {{"lr", 1.5}, {"min_lr", 0}, {"warmup", 60}, {"clip", 0}, {"decay", 0}};
  const TrainConfig config = sorting_config(json);
  const std::filesystem::path path = folder.path() / "run";
  const std::string message = message_of<TrainingStopped>([&] { run(config, path); });
  CAPTURE(message);
  const RunFolder open(path);
  REQUIRE(open.checkpoints().size() == 2);
  const int64_t step = open.checkpoints().back();
  CHECK(contains(message, fmt::format("step {} (validation", step)));
  CHECK(step % 5 == 0);
  double measured = 0, last = 0;
  for (const nlohmann::json& line : open.metrics()) {
    measured = line["step"] == step && line.contains("validation") ? line["validation"].get<double>() : measured;
    last = line.value("loss", last);
  }
  CHECK(measured < 1.5 * std::log(16.0));
  const StoredState kept = load_checkpoint(open.path(), step);
  const Batches batches(open_sequences(config), config);
  CHECK(Trainer(config, kept.model, at::kCPU).evaluate(batches).loss == measured);
}

TEST_CASE("an interrupt is seen within a step, forwards and back, and leaves what was before it") {
  const TrainConfig config = sorting_config(short_run());
  const Batches batches(open_sequences(config), config);
  const std::vector<TrainBatch> first = {batches.training(0)};
  Trainer trainer(config, initial_model(config, {}), at::kCPU);
  const double before = sum_of_weights(trainer);
  const at::Tensor x = trainer.executor().head_input(first[0].inputs).sum();
  const Interruptible interruptible;
  ::raise(SIGINT);
  CHECK_THROWS_AS(x.backward(), Interrupted);
  CHECK_THROWS_AS(trainer.begin_step(first, {0.1, 0}), Interrupted);
  CHECK_THROWS_AS(trainer.evaluate(batches), Interrupted);
  const at::Tensor rows = at::randn({3, 16}), targets = at::zeros({3}, at::kLong);
  CHECK_THROWS_AS(cross_entropy(rows, {.weight = at::randn({5, 16})}, targets, 1 << 20), Interrupted);
  CHECK(sum_of_weights(trainer) == before);
}

TEST_CASE("a run that is interrupted while it measures measures when it goes on") {
  const TemporaryFolder folder;
  const TrainConfig config = sorting_config(short_run());
  run(config, folder.path() / "whole");
  for (const int64_t step : {3, 4, 5, 9, 13}) {
    CAPTURE(step);
    const std::filesystem::path path = folder.path() / std::to_string(step);
    interrupt_at(step, config, path);
    CHECK(RunFolder(path).checkpoints().back() == step);
    run(config, path, true);
    CHECK(curve(path) == curve(folder.path() / "whole"));
  }
  // As if it had come between a step and its measurement: the line is missing, and the checkpoint is there.
  const std::filesystem::path path = folder.path() / "whole", metrics = path / "metrics.jsonl";
  const std::string all = bytes_of_file(metrics), expected = curve(path);
  const size_t line = all.rfind("{\"step\":14,\"validation\"");
  REQUIRE(line != std::string::npos);
  folder.write("whole/metrics.jsonl", all.substr(0, line));
  run(config, path, true);
  CHECK(curve(path) == expected);
}

}  // namespace pare::test
