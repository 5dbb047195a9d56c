// Attention that pools (SigLIP): a probe p, the same for every image, attends to all states x. Its query is a constant,
// and head h sees of query and key only the one vector u_h = W_K,h (p W_Q + b_Q)_h:
//
//   y = sum_h softmax(x u_h)' x W_V,h W_O,h + (b_V W_O + b_O),   answer = y + MLP(norm(y))
//
// So of the probe, W_Q, b_Q and W_K, 2 d² + 2 d numbers, heads · d are left; of W_V and W_O what every head has; of the
// four biases one. Behind a LayerNorm with gain g, 1/g is a direction that only adds constants: softmax drops them, and
// the bias takes them.

#include "pare/redundancy/tally.h"

namespace pare {

static void count_norm_before_mlp(Tally& tally, const AttentionPool& pool, int64_t width) {
  const Norm& norm = *pool.norm;
  if (norm.kind == NormKind::dyt || norm.kind == NormKind::scale) {
    tally.cannot("a norm of a pool that is neither LayerNorm nor RMSNorm");
    return;
  }
  tally.add(Symmetry::norm_gain, (norm.gain ? width : 0) + (norm.bias ? width : 0));
  if (norm.kind == NormKind::layer) {
    tally.add(Symmetry::layer_norm_ones, pool.mlp_width);
    tally.add(Symmetry::layer_norm_means, 1);  // the MLP does not see the mean, and its last bias takes it back
  }
}

static void count_pool(Tally& tally, const AttentionPool& pool, const std::optional<Norm>& before, int64_t width) {
  const int64_t head_width = width / pool.heads;
  tally.add(Symmetry::constant_query, 2 * width * width + 2 * width - pool.heads * width);
  tally.add(Symmetry::key_bias, width);
  tally.add(Symmetry::value_bias, width);
  tally.add(Symmetry::value_output, width * head_width, pool.heads);
  if (before && before->kind == NormKind::layer) {
    tally.add(Symmetry::layer_norm_ones, pool.heads + width);
  }
  if (pool.norm) {
    count_norm_before_mlp(tally, pool, width);
  } else {
    tally.add(Symmetry::stream_shift, width);  // of what the MLP reads and adds to, by the biases on both sides
  }
  if (pool.activation == Activation::relu || pool.activation == Activation::relu_squared) {
    tally.add(Symmetry::mlp_scaling, pool.mlp_width);
    tally.cannot("a ReLU behind attention that pools: of few images some neurons see one side alone");
  } else if (pool.activation == Activation::identity) {
    tally.cannot("a pool whose MLP is linear");
  }
}

Architecture without_attention_pool(Tally& tally, Architecture a) {
  if (!a.head.attention_pool) {
    return a;
  }
  count_pool(tally, *a.head.attention_pool, a.final_norm, a.width);
  if (a.task != Task::encoder || a.head.transform) {
    tally.cannot("attention that pools before a head");  // the states are no answer, and more of them is free
  }
  a.head.attention_pool.reset();
  a.head.pool = Pool::first;
  return a;
}

}  // namespace pare
