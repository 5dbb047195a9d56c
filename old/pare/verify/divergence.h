#pragma once
// Where two models that differ begin to differ.

#include "pare/verify/answers.h"
#include "pare/verify/verify.h"

namespace pare {

// Runs the worst sequence through both models, layer beside layer: attention probabilities by their largest absolute
// difference, then the logits (an encoder's hidden states) by their relative error.
Divergence first_divergence(const ComparedModel& reference, const ComparedModel& candidate, const Asked& asked,
                            const Comparison& compared, double allowed);

}  // namespace pare
