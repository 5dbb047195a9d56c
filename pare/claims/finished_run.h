#pragma once
// What a look at a finished run needs: its checkpoints, sequences that it did not learn from, and what can be removed
// from it exactly.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pare/checkpoint/dtype.h"
#include "pare/model/inputs.h"

namespace pare {

struct StoredCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;  // a model in the native format
};
std::vector<StoredCheckpoint> checkpoints_of(const std::filesystem::path& run);  // ascending

// The beginnings of so many of the sequences that the run was measured on, from all over them.
Inputs held_out(const std::filesystem::path& run, int64_t sequences, int64_t tokens);

// The last checkpoint of a run folder, rewritten by these passes (`auto`: by all that save) and verified; kept nowhere:
// {"before", "after", "verdict", "error", "bytes"} with parameters, the relative error and the size of the weights'
// files, or {"refused": why}.
nlohmann::ordered_json rewritten_exactly(const std::filesystem::path& run, const std::string& passes,
                                         Dtype dtype = Dtype::f64);
std::string removed_in_words(const nlohmann::ordered_json& rewritten);  // "884,736 parameters, 8.09 %, proved, 3e-15"

}  // namespace pare
