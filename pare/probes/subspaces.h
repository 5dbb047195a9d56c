#pragma once
// Where heads write: the row spaces of Y_h W_O^h, their dimensions, and the angles between them.

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "pare/probes/stacks.h"

namespace pare {

// What is the same for every sequence: W_O^h = R_hᵀ Q_hᵀ with orthonormal columns in Q_h, so that everything else is
// done in the few coordinates of Q_h.
struct OutputBases {
  at::Tensor basis;    // Q [heads, d, m], m = min(d, k)
  at::Tensor upper;    // R [heads, m, k]
  at::Tensor between;  // Q_gᵀ Q_h [pairs, m, m]
  at::Tensor cosines;  // singular values of that [pairs, m]: where two heads use all of their coordinates
  std::vector<std::pair<int64_t, int64_t>> pairs;  // g < h
};
// `output`: [d, heads * k], as a dense layer's weight.
OutputBases output_bases(const at::Tensor& output, int64_t heads);

struct StackSubspaces {
  at::Tensor dimension;       // [rows, heads]
  at::Tensor smallest, mean;  // principal angles in radians [rows, pairs]; NaN where a head writes nothing
};
// `written`: what the heads hand to W_O, [rows, n, heads, k].
StackSubspaces stack_subspaces(const at::Tensor& written, const OutputBases& bases, const Tolerance& tolerance);

// All principal angles between the column spaces of two matrices with orthonormal columns, ascending. Accurate also
// near 0, where the cosine says nothing (Björck and Golub 1973).
at::Tensor principal_angles(const at::Tensor& a, const at::Tensor& b);

// ‖(M - Mᵀ)/2‖ / ‖M‖ of M = query key', both [d, k]; NaN where M is zero. Without building M.
double asymmetry(const at::Tensor& query, const at::Tensor& key);

}  // namespace pare
