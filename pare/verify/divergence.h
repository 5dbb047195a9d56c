#pragma once
// Where two models that differ begin to differ.

#include "pare/verify/answers.h"
#include "pare/verify/verify.h"

namespace pare {

// Runs one sequence through both models, layer beside layer: attention probabilities by their largest absolute
// difference, heads in the order that fits best, then what the models say, by `difference`.
Divergence first_divergence(const ComparedModel& reference, const ComparedModel& candidate, const Inputs& sequence,
                            const std::string& answer, double difference, double allowed);

}  // namespace pare
