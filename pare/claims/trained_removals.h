#pragma once
// Claims about models that were trained without some of their matrices: what each plans to train, and how it judges.

#include <string>
#include <vector>

#include "pare/claims/trained.h"

namespace pare {

// Paper 0, Section 8.4: relative errors of what was fitted, at each width.
struct FittedErrors {
  double trained = 0, linear = 0;
};
ClaimVerdict judge_basis_transfer(ClaimScale scale, const std::vector<FittedErrors>& by_width);

// Paper 1, Figures 1, 3 and 4: neither skips nor norms, nor Q and P.
std::vector<PlannedRun> plan_skipless(const Trial& trial);
Outcome judge_skipless(const Trial& trial, const TrainedRuns& runs);

// Paper 2, Section 5: neurons that are heads, trained.
std::vector<PlannedRun> plan_attention_only(const Trial& trial);
Outcome judge_attention_only(const Trial& trial, const TrainedRuns& runs);

}  // namespace pare
