#pragma once
// Numbers made of stored ones, and what one rounding of each of those does to them.

#include <ATen/core/Tensor.h>

#include <vector>

#include "pare/arch/tensors.h"
#include "pare/checkpoint/dtype.h"

namespace pare {

struct Rounded {
  at::Tensor value, rounding;
};

// A stored number is off by half the distance to the next one of its type.
at::Tensor half_spacing(const at::Tensor& value, Dtype dtype);

// The size of what a reference's numbers are made of, before anything cancels.
at::Tensor size_of(const Rounded& exact);
Rounded scaled_columns(const Rounded& matrix, const Rounded& factors);
Rounded times_vector(const Rounded& matrix, const Rounded& vector);
Rounded product(const Rounded& a, const Rounded& b);  // of matrices, or of stacks of them
Rounded sum(const Rounded& a, const Rounded& b);
Rounded times(const Rounded& a, double factor);
Rounded transposed(const Rounded& matrix);  // or a stack of them
Rounded narrowed(const Rounded& a, int64_t axis, int64_t begin, int64_t count);
Rounded joined(const std::vector<Rounded>& parts, int64_t axis);
Rounded reshaped(const Rounded& a, at::IntArrayRef shape);
// Without its mean, along the last axis.
Rounded without_mean(const Rounded& rows);

}  // namespace pare
