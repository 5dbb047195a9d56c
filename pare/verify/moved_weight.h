#pragma once
// A weight with every element moved a little, up or down at random, and still read only when asked for.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "pare/checkpoint/weight.h"

namespace pare {

// Where the elements of a tensor go. A direction belongs to its element, so a tensor is moved alike whether it is
// loaded whole or in slices.
struct Movement {
  uint64_t seed = 0;
  double from_zero = 0;  // what each is moved by a fraction of; 0: its own size
};

// In float64. `rows` are those from `first_row` on.
at::Tensor moved(const at::Tensor& rows, int64_t first_row, const Movement& movement, double fraction);
Weight moved(const Weight& original, const Movement& movement, double fraction);

}  // namespace pare
