#pragma once
// The matrices of a loaded attention layer that a probe asks about: M = W_Q W_Kᵀ of each head, and W_O.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "pare/model/attention.h"

namespace pare {

// For each head, M = query key', both [d, k] in float64. Biases, norms of queries and keys and the turning of RoPE are
// left out: M is what scores a pair of inputs before all of these. Query heads that share a key have the same one.
struct ScoreMaps {
  std::vector<std::pair<at::Tensor, at::Tensor>> heads;
  std::string missing;  // why there are none
};
ScoreMaps score_maps(const AttentionLayer& layer, bool tabled);

// [d, heads * k] in float64; the identity where there is no matrix.
at::Tensor output_map(const AttentionLayer& layer);

}  // namespace pare
