#pragma once
// One training run from its configuration to its last checkpoint, or several that share their data.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "pare/ranks/communicator.h"
#include "pare/support/error.h"
#include "pare/train/batches.h"
#include "pare/train/config.h"

namespace pare {

// The loss is no number, or explodes: what the run found, and no mistake of who asked for it.
struct TrainingStopped : InputError {
  using InputError::InputError;
};

struct TrainProgress {
  int64_t step = 0, steps = 0;
  double cross_entropy = 0;  // the loss without what a teacher and a morph add: what validation is measured in
  double rate = 0, tokens_per_second = 0, seconds_left = 0;
  std::optional<double> validation;  // where it was measured after this step
  // With it, where conditions are asked for: the worst of all matrices, and the error predicted for the rewrite in
  // float32.
  std::optional<double> condition, rewrite_error;
};

struct TrainOptions {
  std::filesystem::path folder;
  bool resume = false;
  at::Device device = at::kCPU;
  Communicator ranks;  // that share each batch; only the first writes and reports. The folder is one that all can read
  std::function<void(const TrainProgress&)> report;  // after every step
  std::function<void(const std::string&)> note;      // what is worth a line before the first
  std::function<void(const std::string&)> warn;      // what was found that ends nothing
  std::string goes_on;  // what a user who interrupts is told; empty: how pare train goes on
};

struct TrainResult {
  std::string path, name, checkpoint;
  int64_t parameters = 0, steps = 0, resumed_from = 0;
  double loss = 0, cross_entropy = 0, validation = 0, accuracy = 0, seconds = 0;
};

// TrainingStopped has the step, the place and the likely cause. Whatever ends it, the last checkpoint stays, and
// Interrupted leaves one of the very step.
TrainResult train(const TrainConfig& config, const std::shared_ptr<const Sequences>& sequences,
                  const TrainOptions& options);

// The data of the run before, where the next one reads the same.
class SequencesCache {
 public:
  std::shared_ptr<const Sequences> open(const TrainConfig& config);

 private:
  std::string key_;
  std::shared_ptr<const Sequences> last_;
};

}  // namespace pare
