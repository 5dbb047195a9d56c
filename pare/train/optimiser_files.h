#pragma once
// The optimiser's state in a checkpoint: optimizer.safetensors, or one file from each of several ranks. Each file says
// of which step it is and which weights it belongs to.

#include <filesystem>
#include <string>

#include "pare/checkpoint/weights.h"

namespace pare {

// All ranks do this together, each for its own file.
void write_optimiser_state(const std::filesystem::path& checkpoint, const Weights& state, int64_t step,
                           const std::string& weights, const WriteShare& share);

// InputError where a file is not there or not whole, or where there are files of several checkpoints.
Weights optimiser_state(const std::filesystem::path& checkpoint);

struct OptimiserStamp {
  std::string step, weights;  // empty where it does not say
};
OptimiserStamp optimiser_stamp(const std::filesystem::path& checkpoint);

}  // namespace pare
