#pragma once
// An identity block in every head of a key or a value: W = C B, where B are k rows of W [d, k], chosen so that C, which
// has the identity in their place, has no entry above 1.01.
//
// Such rows span almost the largest volume that k rows of W can, and C is a matter of W's column space alone: it is
// computed from an orthonormal basis of it. So C B gives back W to a rounding of W, however badly conditioned W is.
// With k rows taken as they come (the leading ones, say), entries of C are as large as B is badly conditioned.

#include <ATen/core/Tensor.h>

#include "pare/algebra/operations.h"

namespace pare {

// Heads as they are stored, Wᵀ: [heads, k, d], k < d. Gives [heads, k, d + 1]: Bᵀ, then Cᵀ without its identity block
// (inputs ascending), then which inputs the block's are.
at::Tensor identity_blocks(const at::Tensor& heads);

// The parts of that, in float64.
at::Tensor block_part(const at::Tensor& blocks);  // Bᵀ, [heads, k, k]
at::Tensor rest_part(const at::Tensor& blocks);   // [heads, k, d - k]
at::Tensor pivot_part(const at::Tensor& blocks);  // [heads, k]

// How much of b is lost in B⁻¹ b, of all heads the most: |W| |W⁻¹ b| / |b|. Infinite where W has not the rank. `bias`
// is [heads, k].
double bias_growth(const at::Tensor& heads, const at::Tensor& bias);

// The whole matrix, [heads * k, d], of one that is stored without its identity block.
Weight unshrunk(const Weight& rest, const Weight& pivots);

}  // namespace pare
