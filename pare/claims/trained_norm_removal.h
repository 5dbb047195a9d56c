#pragma once
// The claim norm-removal in its parts: what is trained, and what that comes to.

#include "pare/claims/trained.h"

namespace pare {

// Sizes of a scale. Steps that follow a baseline: few, as many as the headline has, and many.
struct NormRemovalSizes {
  int64_t early_baseline = 0, baseline = 0, longer_baseline = 0, few = 0, usual = 0, many = 0;
  std::vector<int64_t> seeds, widths;
};
NormRemovalSizes sizes_of_norm_removal(ClaimScale scale);

// What variants of a model are called that others trained.
constexpr const char *stories_ending = "-stories260K", *stories_longer_ending = "-stories260K-longer",
                     *stories_recovered_ending = "-stories260K-recovered";

std::vector<PlannedRun> plan_of_norm_removal(const Trial& trial);
Outcome judge_norm_removal(const Trial& trial, const TrainedRuns& runs);

}  // namespace pare
