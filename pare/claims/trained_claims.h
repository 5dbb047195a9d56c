#pragma once
// The claims that train, in their parts: what each plans to train, and how it judges what was trained of that.

#include <vector>

#include "pare/claims/trained.h"

namespace pare {

// What may be called no loss, in nats a token: half of what the controls of paper 0's Table 2 lose (0.011 and 0.012),
// which it calls worse.
constexpr double least_cost = 0.005;

// Paper 0, Table 2 and Figure 1: W_Q = I from scratch, against the baseline and controls, under many conditions.
std::vector<PlannedRun> plan_query_elimination(const Trial& trial);
Outcome judge_query_elimination(const Trial& trial, const TrainedRuns& runs);

// Paper 0, Remark 2: norms taken out of a trained model.
std::vector<PlannedRun> plan_norm_removal(const Trial& trial);
Outcome judge_norm_removal(const Trial& trial, const TrainedRuns& runs);

// Paper 0, Section 8.4: relative errors of what was fitted, at each width.
struct FittedErrors {
  std::vector<double> trained, linear;
};
void judge_basis_transfer(ClaimScale scale, const FittedErrors& errors, Outcome& outcome);

// Paper 1, Figures 1, 3 and 4: neither skips nor norms, nor Q and P.
std::vector<PlannedRun> plan_skipless(const Trial& trial);
Outcome judge_skipless(const Trial& trial, const TrainedRuns& runs);

// Paper 2, Section 5: neurons that are heads, trained.
std::vector<PlannedRun> plan_attention_only(const Trial& trial);
Outcome judge_attention_only(const Trial& trial, const TrainedRuns& runs);

// Paper 3, Section 6: how much of a transformer a classifier of images can do without. Beyond smoke scale the folder of
// corpora holds MNIST's four files in mnist/, and CIFAR-10's pictures in cifar10/train and cifar10/test, a folder for
// each class.
std::vector<PlannedRun> plan_minimum_transformer(const Trial& trial);
Outcome judge_minimum_transformer(const Trial& trial, const TrainedRuns& runs);

// Paper 4, Proposition 8.2 and Appendix A: position gates (trained_pgop.h), and MLPs of half the width with them.
std::vector<PlannedRun> plan_pgop(const Trial& trial);
Outcome judge_pgop(const Trial& trial, const TrainedRuns& runs);
std::vector<PlannedRun> plan_ffn_width(const Trial& trial);
Outcome judge_ffn_width(const Trial& trial, const TrainedRuns& runs);

// Paper 4, Section 12: whether ranks rise or fall while a model learns. Every checkpoint is probed.
std::vector<PlannedRun> plan_rank_dynamics(const Trial& trial);
Outcome judge_rank_dynamics(const Trial& trial, const TrainedRuns& runs);

}  // namespace pare
