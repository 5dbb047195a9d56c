#pragma once
// A run on disk: config.json, data.json and start.json, with their hashes in run.sha256; order.i32, metrics.jsonl, its
// tokenizer, and checkpoints/STEP, each a model in the native format with the tokenizer and optimizer.safetensors
// beside it; of several ranks, one file of each from every rank. It appears whole, with its start as checkpoint 0, and
// whatever ends a process, what is there can be continued.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/support/files.h"
#include "pare/train/trainer.h"

namespace pare {

// What is read of a run that nobody need have finished, for who compares. InputError where a file is not as it was when
// the run began.
nlohmann::json read_run_json(const std::filesystem::path& run, const char* name);
TrainConfig read_run_config(const std::filesystem::path& run);
nlohmann::json read_run_source(const std::filesystem::path& run);  // start.json; empty where there is none
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& run);

struct StoredState {
  Model model;
  Weights optimiser;
  bool shared = false;  // its tensors are there only where all ranks load them, in one order
};
// The model and the state of a checkpoint that is whole, for whoever reads it beside the process that has the run.
StoredState load_checkpoint(const std::filesystem::path& run, int64_t step);
// Which step and which weights it says that it has: the same on all ranks that see the same folder.
std::string checkpoint_says(const std::filesystem::path& run, int64_t step);
StoredState state_of(const Trainer& trainer);  // follows the trainer where it goes
StoredState copied(const StoredState& state);  // stays as it is

class RunFolder {
 public:
  // For who writes a new one: says that something stands there, and what to do.
  [[noreturn]] static void refuse_existing(const std::filesystem::path& path);
  // A new one. InputError where something stands there already. All ranks do this together, with save().
  static void create(const std::filesystem::path& path, const TrainConfig& config, const Batches& batches,
                     const Trainer& start, const nlohmann::ordered_json& source, const Communicator& ranks = {});
  // Locks it until this object goes. InputError where it is no run, or another process works on it.
  explicit RunFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  TrainConfig config() const;
  nlohmann::json manifest() const;
  nlohmann::json source() const;  // start.json: what it started from, and who teaches; empty where nothing did

  std::vector<int64_t> checkpoints() const;  // their steps, ascending
  // The last one that is whole, and why those after it are not. InputError where what is there cannot come from this
  // run: a step that it has not done, the state of an optimiser at another step, steps that nobody measured.
  struct Continuation {
    int64_t step = 0;
    std::vector<std::string> damaged;
  };
  Continuation continuation() const;
  std::filesystem::path checkpoint_path(int64_t step) const;
  // Whole or not at all, in place of one that is not; then those that need not stay are removed, unless keep is 0. All
  // ranks together: each writes a file of the weights and one of the optimiser's state, and only the first has
  // `folder`.
  static void save(const RunFolder* folder, int64_t step, const StoredState& state, int64_t keep,
                   const Communicator& ranks = {});

  // Forgets what was measured after a step: it will be measured again.
  void cut_metrics(int64_t last_step);
  void add_metrics(const nlohmann::ordered_json& line);
  std::vector<nlohmann::json> metrics() const;

 private:
  void sync_metrics() const;
  void remove_all_but(int64_t keep, int64_t step) const;

  std::filesystem::path path_;
  Descriptor lock_;
  std::optional<Descriptor> metrics_;
};

}  // namespace pare
