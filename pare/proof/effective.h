#pragma once
// Numbers made of stored ones, and what one rounding of each of those does to them.

#include <ATen/core/Tensor.h>

#include "pare/arch/tensors.h"
#include "pare/checkpoint/dtype.h"

namespace pare {

struct Effective {
  at::Tensor value, rounding;
};

// A stored number is off by half the distance to the next one of its type.
at::Tensor half_spacing(const at::Tensor& value, Dtype dtype);

// The size of what a reference's numbers are made of, before anything cancels.
at::Tensor size_of(const Effective& exact);
Effective scaled_columns(const Effective& matrix, const Effective& factors);
Effective times_vector(const Effective& matrix, const Effective& vector);
Effective product(const Effective& a, const Effective& b);  // of matrices, or of stacks of them
Effective sum(const Effective& a, const Effective& b);
Effective times(const Effective& a, double factor);
Effective transposed(const Effective& matrix);  // or a stack of them
Effective narrowed(const Effective& a, int64_t axis, int64_t begin, int64_t count);
Effective reshaped(const Effective& a, at::IntArrayRef shape);
// Without its mean, along the last axis.
Effective without_mean(const Effective& rows);

}  // namespace pare
