#pragma once
// Linear equations between matrices that are looked for together, where too little is known of each alone: bases of
// streams and gauges of heads.

#include <ATen/core/Tensor.h>

#include <map>
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

// One over the length of each row: times that, each counts alike.
at::Tensor one_over(const at::Tensor& rows);

// Some of the unknowns may be known, and rows have a scale.
struct MatrixSystem {
  std::vector<at::Tensor> guess;
  std::map<size_t, at::Tensor> known = {};
  std::vector<MatrixEquation> equations = {};

  void add(MatrixEquation equation, const at::Tensor& scale);  // of each row; undefined: as they are
};

// The least squares nearest to the guess, by conjugate gradients: no equation is ever written out.
std::vector<at::Tensor> solve_together(const std::vector<MatrixEquation>& equations, std::vector<at::Tensor> guess);

}  // namespace pare
