#include "pare/linear/procrustes.h"

#include <ATen/ATen.h>

namespace pare {

at::Tensor nearest_orthogonal(const at::Tensor& matrix) {
  const auto [u, values, v] = at::linalg_svd(matrix, /*full_matrices=*/false);
  at::Tensor nearest = at::matmul(u, v);
  // Of what a decomposition loses, this takes all but the last digit (Newton and Schulz).
  const at::Tensor eye = at::eye(matrix.size(0), matrix.options());
  nearest = at::matmul(nearest, 1.5 * eye - 0.5 * at::matmul(nearest.t(), nearest));
  return nearest;
}

at::Tensor procrustes(const at::Tensor& reference, const at::Tensor& candidate, const at::Tensor& start) {
  const at::Tensor inner = at::matmul(reference.t(), candidate);
  const double size = inner.norm().item<double>();
  // Directions without rows stay as they are at the start: too little to move any that has some.
  return nearest_orthogonal(size > 0 ? inner + start * (size * 1e-15) : start);
}

}  // namespace pare
