#pragma once
// Runs side by side: only where they saw the same data in the same order, and at a step that all of them have reached.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/support/statistics.h"

namespace pare {

// A loss over the steps, of runs that differ in their seed: their mean, and their standard deviation where there are
// several.
struct LossCurve {
  std::vector<int64_t> steps;
  std::vector<double> loss, spread;
};

// Runs that differ in nothing but their seed.
struct ComparedRuns {
  std::string name;
  std::vector<std::string> paths;
  std::vector<int64_t> seeds, done;                // of each run: its seed, and how many steps it has behind it
  int64_t steps = 0;                               // that each is to do
  std::string start, teacher;                      // in words; no teacher: empty
  std::optional<double> t;                         // of a morph that is not at its end at the step of the comparison
  int64_t parameters = 0, outside_embeddings = 0;  // at that step
  double rate = 0;                                 // the largest learning rate
  std::vector<double> losses, accuracies;          // on the validation set, of each run
  double loss = 0, accuracy = 0;                   // their means
  std::optional<double> spread;                    // standard deviation over the seeds, where there are several
  Estimate difference;                             // to the first row, over the seeds that both have
  LossCurve training, validation;
  LossCurve differences;  // of validation, to the first row, likewise; its spread is half of the 95 % interval
};

struct RunComparison {
  int64_t step = 0;                // the last that all have measured
  int64_t window = 1;              // the training losses of so many steps are one point of a curve, their mean
  nlohmann::json data;             // the manifest that all share
  std::vector<std::string> notes;  // what else than their Architectures sets the rows apart, a sentence each
  std::optional<double> margin;    // losses that differ by no more are called equal; none: nothing is
  std::vector<ComparedRuns> rows;  // of different names
};

// InputError where a folder is no run, where runs saw different data, listing every difference, and where they have
// nothing but their start in common.
RunComparison compare_runs(const std::vector<std::string>& runs, const std::optional<double>& margin = {});

std::string comparison_text(const RunComparison& comparison);
nlohmann::ordered_json comparison_json(const RunComparison& comparison);

}  // namespace pare
