#pragma once
// The claim norm-removal in its parts, for tests.

#include "pare/claims/trained.h"

namespace pare {

std::vector<PlannedRun> plan_of_norm_removal(const Trial& trial);
Outcome judge_norm_removal(const Trial& trial, const TrainedRuns& runs);

}  // namespace pare
