// The configuration of a run: what it says, what it refuses, and what a sweep makes of it.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/support/error.h"
#include "pare/train/config.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

std::string message_of(const nlohmann::json& json) {
  try {
    train_config_from_json(json, "test", no_architecture);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every key has its default, and what is written is read back") {
  const TrainConfig config = train_config_from_json(sorting_json(), "test", no_architecture);
  CHECK(config.batch == 16);
  CHECK(config.optimiser == OptimiserConfig{});
  CHECK(context_of(config) == 2 * config.data.length);
  const nlohmann::json written = train_config_to_json(config);
  CHECK(train_config_from_json(written, "test", no_architecture) == config);
  for (const ConfigKey& key : train_config_keys()) {  // the list and the file are one table
    CAPTURE(key.key);
    std::string pointer = "/" + key.key;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    CHECK((key.key == "sweep" || key.key == "recompute" || key.key == "shard" ||
           written.contains(nlohmann::json::json_pointer(pointer))));
    CHECK(!key.meaning.empty());
  }
}

TEST_CASE("unknown keys name the nearest, wrong values their range, all at once") {
  nlohmann::json json = sorting_json();
  json["bacth"] = 3;
  json["optimiser"] = {{"lrr", 1}};
  const std::string unknown = message_of(json);
  CHECK(has(unknown, "did you mean 'batch'?"));
  CHECK(has(unknown, "optimiser.lrr: unknown key (did you mean 'lr'?)"));

  json = sorting_json();
  json["batch"] = 0;
  json["optimiser"] = {{"lr", 1e-3}, {"min_lr", 1e-2}, {"betas", {1.5}}, {"epsilon", 0}};
  json["data"] = {{"symbols", 1}, {"validation_share", 1}, {"deviation", {1, 0}}};
  const std::string ranges = message_of(json);
  for (const char* part : {"batch: 0 is less than 1", "optimiser.min_lr: 0.01 is more", "optimiser.betas: 1 numbers",
                           "optimiser.betas: 1.5 is not between 0 and 1", "optimiser.epsilon: 0 is less than 1e-30",
                           "data.symbols: 1 is less than 2", "data.validation_share: 1 is not between 0 and 1",
                           "data.deviation: 0 is less than"}) {
    CAPTURE(part);
    CHECK(has(ranges, part));
  }
}

TEST_CASE("a task that the Architecture cannot do is refused") {
  nlohmann::json json = sorting_json();
  json["data"]["symbols"] = 100;
  CHECK(has(message_of(json), "architecture.vocab: 16 is less than the 101 tokens of sorting"));
  json = sorting_json();
  json["data"]["length"] = 30;
  CHECK(has(message_of(json), "context: sequences of 60 tokens, but the Architecture's context is 32"));
  json = sorting_json();
  json["task"] = "masked_lm";
  CHECK(has(message_of(json), "masked_lm trains an Architecture of the task masked_lm, this one's is causal_lm"));
  json = sorting_json();
  json["task"] = "causal_lm";
  CHECK(has(message_of(json), "data.train: causal_lm needs text files"));
  json = sorting_json();
  json["context"] = 100000000;
  CHECK(has(message_of(json), "context: 100000000, but sorting has sequences of 10 tokens"));
  json["context"] = 10;
  CHECK(message_of(json) == "");
  json = sorting_json();
  json["data"]["tokenizer"] = "folder";
  CHECK(has(message_of(json), "sorting is a generated task, which reads no files"));
  json = sorting_json();
  json["task"] = "causal_lm";
  json["data"] = {{"train", {"text"}}, {"format", "idx"}};
  CHECK(has(message_of(json), "data.format: idx are images, and the Architecture reads tokens"));
  json = sorting_json();
  json["architecture"]["blocks"][0]["attention"]["mask"] = "full";
  CHECK(has(message_of(json), "would be told the answer"));
}

TEST_CASE("keys are set by their path, in every block too, and an Architecture that is named is looked up") {
  nlohmann::json json = sorting_json();
  set_key(json, "optimiser.lr=0.25", no_architecture);
  set_key(json, "architecture.blocks.*.attention.query=identity", no_architecture);
  set_key(json, "task=copying", no_architecture);
  const TrainConfig config = train_config_from_json(json, "test", no_architecture);
  CHECK(config.optimiser.lr == 0.25);
  CHECK(config.task == TrainTask::copying);
  CHECK(is<Identity>(config.architecture.blocks.back().attention.query));
  set_key(json, "architecture.blocks.1.mlp.width=24", no_architecture);  // two blocks, of one entry that is repeated
  const std::vector<Block> blocks = train_config_from_json(json, "test", no_architecture).architecture.blocks;
  REQUIRE(blocks.size() == 2);
  CHECK(std::get<DenseMlp>(blocks[0].mlp->kind).width == 32);
  CHECK(std::get<DenseMlp>(blocks[1].mlp->kind).width == 24);
  json = sorting_json();
  set_key(json, "architecture.blocks.0.repeat=5", no_architecture);  // of the entry
  CHECK(train_config_from_json(json, "test", no_architecture).architecture.blocks.size() == 5);
  CHECK_THROWS_AS(set_key(json, "architecture.blocks.7.wiring=serial", no_architecture), InputError);
  CHECK_THROWS_AS(set_key(json, "batch", no_architecture), InputError);
  CHECK_THROWS_AS(set_key(json, "task.size=3", no_architecture), InputError);

  json["architecture"] = "named";
  set_key(json, "architecture.width=99", [&](const std::string& word) {
    CHECK(word == "named");
    return config.architecture;
  });
  CHECK(json["architecture"]["width"] == 99);
}

TEST_CASE("a sweep is every combination, each with a name") {
  nlohmann::json json = sorting_json();
  json["sweep"] = {
      {"seeds", {0, 1}},
      {"optimiser.lr", {1e-3, 2e-3}},
      {"variants",
       {{"base", nlohmann::json::object()}, {"no-query", {{"architecture.blocks.*.attention.query", "identity"}}}}}};
  const std::vector<SweepRun> runs = expand_sweep(json, "test", no_architecture);
  REQUIRE(runs.size() == 8);
  CHECK(runs.front().name == "base-lr0.001-seed0");
  CHECK(runs.back().name == "no-query-lr0.002-seed1");
  const TrainConfig last = train_config_from_json(runs.back().config, "test", no_architecture);
  CHECK(last.seed == 1);
  CHECK(last.optimiser.lr == 2e-3);
  CHECK(is<Identity>(last.architecture.blocks.front().attention.query));
  CHECK(is<Dense>(
      train_config_from_json(runs.front().config, "test", no_architecture).architecture.blocks[0].attention.query));
  CHECK(expand_sweep(sorting_json(), "test", no_architecture).size() == 1);
  json["sweep"] = {{"seeds", 3}};
  CHECK_THROWS_AS(expand_sweep(json, "test", no_architecture), InputError);
  json["sweep"] = {{"variants", {{"../out", nlohmann::json::object()}}}};
  CHECK_THROWS_AS(expand_sweep(json, "test", no_architecture), InputError);
}

}  // namespace pare::test
