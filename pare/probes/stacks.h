#pragma once
// Measurements of many matrices at once: stacks of activations, one matrix for each sequence. Everything is float64 and
// comes back with one row for each sequence, NaN where a number is not defined. docs/probes.md has the definitions.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "pare/arch/norm.h"

namespace pare {

// Applies a function of stacks, row by row on all cores where the stacks are on the CPU: LAPACK's own threads only get
// into each other's way on matrices of this size. On a GPU the whole stack is one call.
using Stacks = std::vector<at::Tensor>;
Stacks over_rows(const Stacks& stacks, const std::function<Stacks(const Stacks&)>& function);

struct Tolerance {
  double threshold = 1e-3;   // what counts as rank, relative to the largest singular value
  double epsilon = 2.2e-16;  // of the type in which the activations were computed: less is rounding
};

struct StackRanks {
  at::Tensor rank, effective_rank, stable_rank, distance_to_rank_one, affine_rank;  // [rows]
  at::Tensor spectrum;                                                              // [rows, min(n, d)]: σ / σ1
  at::Tensor finite;  // bool [rows]: where it is false, everything else is NaN
};
StackRanks stack_ranks(const at::Tensor& x, const Tolerance& tolerance);  // [rows, n, d]
at::Tensor stack_rank(const at::Tensor& x, const Tolerance& tolerance);   // the rank alone

// The first and the second singular value of each attention matrix [rows, heads, n, n]: both [rows, heads].
struct StackGaps {
  at::Tensor first, second;
};
StackGaps stack_gaps(const at::Tensor& probabilities);

// What the rank-neutrality theorem asks of the input of a norm, [rows]. `rms`: of RMSNorm, whose scale is the root mean
// square, and which subtracts no mean, so that H2 asks nothing (NaN).
struct StackHypotheses {
  at::Tensor row_scale;    // H1: least σ(x_i) / rms(x_i); for RMSNorm least rms(x_i) / largest rms(x_i)
  at::Tensor ones_sine;    // H2
  at::Tensor scales_sine;  // H4
};
StackHypotheses stack_hypotheses(const at::Tensor& x, NormKind kind, const Tolerance& tolerance);

}  // namespace pare
