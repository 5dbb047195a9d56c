#pragma once
// What a model says when one of its tensors is moved, for several tensors and by several sizes, in one pass over its
// weights: one clean stream goes through the layers, and where a disturbed tensor stands it branches into a batch of
// one stream for each size, which go on together.

#include <span>
#include <vector>

#include "pare/arch/tensors.h"
#include "pare/verify/answers.h"
#include "pare/verify/moved_weight.h"

namespace pare {

struct Disturbance {
  TensorSpec tensor;
  Movement movement;
};

// For each disturbance and each size, the answer to a single sequence. The matrix and bias of the head have no part in
// it: who compares answers multiplies with them.
std::vector<std::vector<Answer>> disturbed_answers(const ComparedModel& runner, const Inputs& sequence,
                                                   std::span<const Disturbance> disturbances,
                                                   std::span<const double> sizes);

}  // namespace pare
