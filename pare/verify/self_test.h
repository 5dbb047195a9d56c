#pragma once
// A check that cannot fail proves nothing: how small a change of the candidate does this one catch? Tensors are moved,
// in one pass over the weights: one clean stream goes through the layers, and where a disturbed tensor stands it
// branches into a batch of one stream for each size, which go on together.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pare/arch/tensors.h"
#include "pare/verify/answers.h"
#include "pare/verify/noise.h"

namespace pare {

// One tensor of the candidate, each element of it moved by a fraction of its own size, up or down at random; a tensor
// of zeros by that fraction of 1/sqrt(its width).
struct SelfTest {
  std::string tensor;
  double smallest_caught = 0;  // 0: not even 100 %, so it has no effect on what was asked
  double largest_missed = 0;
};

// One sequence of what was asked, and what the reference said to it.
struct Sample {
  Inputs inputs;
  Answer truth;
  at::Tensor targets;
};

// Disturbs tensors from all over the candidate, chosen by the seed: one of the embedding, some of blocks, one of the
// head or of what else stands behind the last layer. Sizes grow fourfold from `smallest` up to 100 %; of those, what is
// `caught` and what is missed is found by halving. Costs about one pass over the candidate's weights.
std::vector<SelfTest> test_check(const ComparedModel& reference, const ComparedModel& candidate, const Sample& sample,
                                 double smallest, uint64_t seed, const std::function<bool(const Comparison&)>& caught);

// VerificationFailed where nothing was caught at all, unless the reference says the same to every token of the sample:
// then there is nothing to catch.
void check_sees(std::span<const SelfTest> tests, const ComparedModel& reference, const Sample& sample, uint64_t seed);

struct Disturbance {
  TensorSpec tensor;
  Movement movement;
  Weight replacement = {};  // in place of a movement: these numbers, whatever the size
};

// The matrix that answers are multiplied with when they are compared, or its bias.
bool is_of_head_matrix(const Architecture& architecture, const TensorSpec& tensor);

// For each disturbance and each size, the answer to a single sequence. The matrix and bias of the head have no part in
// it: who compares answers multiplies with them.
std::vector<std::vector<Answer>> disturbed_answers(const ComparedModel& runner, const Inputs& sequence,
                                                   std::span<const Disturbance> disturbances,
                                                   std::span<const double> sizes);

}  // namespace pare
