#pragma once
// What a training run is: one JSON, read with every problem at once, with one table of keys behind reading, writing and
// `pare train --print-config`.

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/dropout_rates.h"

namespace pare {

class Problems;  // pare/support/error.h

enum class TrainTask { causal_lm, masked_lm, classifier, sorting, copying, addition };
enum class DataFormat { bytes, uint16, uint32, idx, cifar10, cifar100, folders };
enum class InitRecipe { plain, gpt2, norm_free, orthogonal };
enum class TrainDtype { float32, float64, bfloat16 };

// Sequences that a model says by itself.
struct SamplesConfig {
  int64_t count = 0;            // 0: none are drawn
  std::string model;            // empty: that of `from`
  int64_t length = 0;           // with the prefix; 0: one more than the context, so that each position has a target
  std::vector<int64_t> prefix;  // empty: what its texts begin with
  double temperature = 1;
  bool operator==(const SamplesConfig&) const = default;
};

struct DataConfig {
  std::vector<std::string> train, validation;
  double validation_share = 0.1;
  DataFormat format = DataFormat::bytes;
  std::string tokenizer, shards;
  SamplesConfig samples;
  int64_t seed = 0;
  double mask_share = 0.15;
  std::optional<int64_t> mask_token;
  int64_t length = 8, symbols = 10;
  std::vector<double> mean = {0}, deviation = {1};
  bool operator==(const DataConfig&) const = default;
};

struct OptimiserConfig {
  double lr = 1e-3, min_lr = 1e-4;
  int64_t warmup = 100;
  std::vector<double> betas = {0.9, 0.95};
  double epsilon = 1e-8, decay = 0.1, clip = 1;
  bool operator==(const OptimiserConfig&) const = default;
};

struct InitConfig {
  InitRecipe recipe = InitRecipe::gpt2;
  double deviation = 0.02;
  double key = 1;
  double embedding = 0.7;
  bool operator==(const InitConfig&) const = default;
};

struct EvaluateConfig {
  int64_t every = 100, batches = 20;
  bool operator==(const EvaluateConfig&) const = default;
};

struct CheckpointConfig {
  int64_t every = 500, keep = 2;
  bool operator==(const CheckpointConfig&) const = default;
};

struct DistillationConfig {
  double weight = 0.5, temperature = 1;
  bool operator==(const DistillationConfig&) const = default;
};

struct MorphConfig {
  std::optional<Architecture> to;  // nothing: it stays what it is
  int64_t steps = 0;
  double evenness = 0.1;
  bool operator==(const MorphConfig&) const = default;
};

struct ConditioningConfig {
  double weight = 0;
  bool operator==(const ConditioningConfig&) const = default;
};

// What each of several ranks holds a part of, where others hold all.
enum class Shard { nothing, optimiser, everything };

struct TrainConfig {
  std::string name;
  std::string from;  // a model folder to start from
  Architecture architecture;
  TrainTask task = TrainTask::causal_lm;
  DataConfig data;
  int64_t context = 0;
  int64_t batch = 16, accumulate = 1, steps = 1000;
  OptimiserConfig optimiser;
  InitConfig init;
  DropoutRates dropout;
  int64_t seed = 0;
  TrainDtype dtype = TrainDtype::float32;
  bool recompute = false;
  Shard shard = Shard::nothing;
  std::string teacher;  // a model folder to learn from
  DistillationConfig distillation;
  MorphConfig morph;
  ConditioningConfig conditioning;
  double stop_above = 0;
  EvaluateConfig evaluate;
  CheckpointConfig checkpoint;
  bool operator==(const TrainConfig&) const = default;
};

// The Architecture that a word names: a file or a preset. InputError where there is none.
using FindArchitecture = std::function<Architecture(const std::string& word)>;

// InputError "SUBJECT: ..." with every problem, each under its dotted key. An Architecture that is not written is that
// of the model to start from, and what a model is to become is found from there (morph_target.h).
TrainConfig train_config_from_json(const nlohmann::json& json, const std::string& subject,
                                   const FindArchitecture& find);
nlohmann::ordered_json train_config_to_json(const TrainConfig& config);

// Everything that a run of it reads, which nothing may be written into.
std::vector<std::string> paths_read(const TrainConfig& config);
// Keys that were set and change nothing in this run, a sentence each with the reason.
std::vector<std::string> keys_without_effect(const TrainConfig& config);

struct ConfigKey {
  std::string key, fallback, meaning;
};
std::vector<ConfigKey> train_config_keys();

// Sets "optimiser.lr=1e-3": the value is JSON, or else a string. Lists are entered by number, or by * for each of their
// entries (architecture.blocks.*.attention.query=identity). The number of a block is the one that its tensors have; of
// `repeat`, that of the entry which is repeated. An Architecture that is named, or that of `from`, is looked
// up to be changed.
void set_key(nlohmann::json& config, const std::string& key, const nlohmann::json& value, const FindArchitecture& find);
void set_key(nlohmann::json& config, const std::string& assignment, const FindArchitecture& find);

// Every run of a configuration with "sweep": {"seeds": [...], "optimiser.lr": [...], "variants": {NAME: {KEY: VALUE}}},
// each with what sets it apart as its name; or the one run that it is, without a name.
struct SweepRun {
  std::string name;
  nlohmann::json config;
};
std::vector<SweepRun> expand_sweep(const nlohmann::json& config, const std::string& subject,
                                   const FindArchitecture& find);
// Each problem under its dotted key. Of the task only where all else is right: its words would repeat what is wrong.
void check_config(const TrainConfig& config, Problems& problems);

const Architecture& last_architecture(const TrainConfig& config);  // of what a run ends with
bool has_other_parts(const TrainConfig& config);                   // whether the loss is not the cross-entropy alone
int64_t context_of(const TrainConfig& config);                     // tokens of one sequence, as the model sees it
bool is_generated(TrainTask task);
const char* word(TrainTask task);
const char* word(DataFormat format);
const char* word(TrainDtype dtype);

}  // namespace pare
