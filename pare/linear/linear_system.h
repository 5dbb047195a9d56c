#pragma once
// Linear equations between matrices that are looked for together: bases of streams and gauges of heads, each of which
// alone is known too little by.

#include <ATen/core/Tensor.h>

#include <vector>

namespace pare {

// left X right, or left Xᵀ right; undefined factors are the identity.
struct MatrixTerm {
  size_t unknown = 0;
  at::Tensor left = {}, right = {};
  bool transposed = false;
  double sign = 1;
};

// The sum of the terms is `constant`; undefined: zero.
struct MatrixEquation {
  std::vector<MatrixTerm> terms;
  at::Tensor constant = {};
};

// The least squares nearest to the guess, by conjugate gradients: no equation is ever written out.
std::vector<at::Tensor> solve_together(const std::vector<MatrixEquation>& equations, std::vector<at::Tensor> guess);

}  // namespace pare
