#include "pare/claims/finished_run.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/train/batches.h"
#include "pare/train/run_folder.h"

namespace pare {

std::vector<StoredCheckpoint> checkpoints_of(const std::filesystem::path& run) {
  const RunFolder folder(run);
  std::vector<StoredCheckpoint> found;
  for (const int64_t step : folder.checkpoints()) {
    found.push_back({step, folder.checkpoint_path(step)});
  }
  return found;
}

Inputs held_out(const std::filesystem::path& run, int64_t sequences, int64_t tokens) {
  TrainConfig config = RunFolder(run).config();
  if (!config.data.validation.empty()) {
    config.data.train = config.data.validation;  // what was learned from is long, and nobody asks for it
  }
  const std::shared_ptr<const Sequences> data = open_sequences(config);
  const int64_t there = data->validation(), count = std::min(sequences, there);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(i * there / count);
  }
  const TrainBatch batch = data->batch(/*of_validation=*/true, numbers, /*draw=*/0);
  return each_of(batch.inputs,
                 [tokens](const at::Tensor& x) { return x.narrow(1, 0, std::min(tokens, x.size(1))).contiguous(); });
}

}  // namespace pare
