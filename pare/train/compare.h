#pragma once
// Runs side by side: only where they saw the same data in the same order, and at a step that all of them have reached.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace pare {

// Runs that differ in nothing but their seed.
struct ComparedRuns {
  std::string name;
  std::vector<std::string> paths;
  int64_t parameters = 0;
  std::vector<double> losses, accuracies;  // on the validation set, of each run
  double loss = 0, accuracy = 0;           // their means
  std::optional<double> spread;            // standard deviation over the seeds, where there are several
};

struct RunComparison {
  int64_t step = 0;  // the last that all have measured
  std::vector<ComparedRuns> rows;
};

// InputError where a folder is no run, and where runs saw different data, listing every difference.
RunComparison compare_runs(const std::vector<std::string>& runs);

std::string comparison_text(const RunComparison& comparison);
nlohmann::ordered_json comparison_json(const RunComparison& comparison);

}  // namespace pare
