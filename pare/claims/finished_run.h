#pragma once
// What a look at a finished run needs: its checkpoints, and sequences that it did not learn from.

#include <filesystem>
#include <vector>

#include "pare/model/inputs.h"

namespace pare {

struct StoredCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;  // a model in the native format
};
std::vector<StoredCheckpoint> checkpoints_of(const std::filesystem::path& run);  // ascending

// The beginnings of so many of the sequences that the run was measured on, from all over them.
Inputs held_out(const std::filesystem::path& run, int64_t sequences, int64_t tokens);

}  // namespace pare
