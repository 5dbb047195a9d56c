#pragma once
// What paper 4 leaves open (section 12): whether ranks rise or fall while a model learns, and whether they fall where
// heads become directional (corollary 6.6). Every checkpoint is probed.

#include <vector>

#include "pare/claims/trained.h"

namespace pare {

std::vector<PlannedRun> plan_rank_dynamics(const Trial& trial);
Outcome judge_rank_dynamics(const Trial& trial, const TrainedRuns& runs);

}  // namespace pare
