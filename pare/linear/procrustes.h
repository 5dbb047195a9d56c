#pragma once
// The orthogonal map between two sets of rows.

#include <ATen/core/Tensor.h>

namespace pare {

// The orthogonal matrix nearest to a square one.
at::Tensor nearest_orthogonal(const at::Tensor& matrix);

// The orthogonal R of the least squares of reference - candidate Rᵀ, rows [n, d]; `start` where the rows say nothing.
at::Tensor procrustes(const at::Tensor& reference, const at::Tensor& candidate, const at::Tensor& start);

}  // namespace pare
