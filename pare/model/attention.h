#pragma once
// The attention sublayer in every stored form: dense, identity, shared, nonlinear, collapsed, shrunk pairs, slim
// caches, gates, shaped attention, a first-layer table.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "pare/arch/architecture.h"
#include "pare/model/loader.h"
#include "pare/model/norm.h"
#include "pare/model/step.h"

namespace pare {

struct AttentionLayer {
  Attention spec;
  int64_t width = 0;
  Linear projections;  // query, key and value in one product, where all three are dense and nothing asks for more
  Linear query, key, value, output;  // an undefined weight is the identity
  Linear query_up, query_down;       // the nonlinear query x + down(act(up(x)))
  Linear value_from_key, key_from_value;
  Linear gate;
  at::Tensor gate_position;
  at::Tensor shape;  // [heads, 3]: how much of the token itself, of attention, and less of all tokens alike
  std::optional<NormLayer> query_norm, key_norm;
};

AttentionLayer load_attention(Loader& loader, const Architecture& architecture, int64_t block);

// x: the sublayer's input [batch, tokens, width], or for a tabled layer the looked-up [query | key | value].
// `prefix` is "blocks.LAYER.attention." for taps.
at::Tensor attend(const AttentionLayer& layer, const at::Tensor& x, bool tabled, Step& step, LayerCache* cache,
                  const std::string& prefix);

}  // namespace pare
