#pragma once
// What may be asked of a pair without a bill that nobody expects: bounds that follow from the models' sizes.

#include <ATen/core/Tensor.h>

#include <string>

#include "pare/arch/architecture.h"

namespace pare {

struct LongestSequence {
  int64_t tokens = 0;
  std::string bound;  // what stands against a longer one; empty: the context ends there
};

// The longest sequence that both models can be run on: half of the budget, two GiB where scores are held as a whole,
// and no more operations on scores than 2^37, or than what the budget's tokens cost anyway.
LongestSequence longest_affordable(const Architecture& reference, const Architecture& candidate, int64_t budget,
                                   at::Device device);

// Whether what every head attends to, in a sequence of so many tokens, can be looked at: at most half a GiB of it.
bool can_hold_attention(const Architecture& architecture, int64_t tokens);

// How many tokens may be asked alone, one after the other: half of the budget, or as many as cost 2^40 operations.
int64_t affordable_alone(const Architecture& reference, const Architecture& candidate, int64_t budget);

}  // namespace pare
