#include "pare/probes/score_maps.h"

#include <ATen/ATen.h>

namespace pare {

// [out, d] of a dense layer, or of the identity.
static at::Tensor matrix_of(const Linear& linear, int64_t width, const at::TensorOptions& options) {
  return linear.weight.defined() ? linear.weight.tensor().to(at::kDouble) : at::eye(width, options);
}

ScoreMaps score_maps(const AttentionLayer& layer, bool tabled) {
  const Attention& t = layer.spec;
  ScoreMaps maps;
  if (tabled) {
    maps.missing = "the projections of this layer are rows of a table, not matrices";
    return maps;
  }
  if (std::holds_alternative<Nonlinear>(t.query)) {
    maps.missing = "the query is not linear";
    return maps;
  }
  const at::TensorOptions options = output_map(layer).options();
  at::Tensor query, key;
  int64_t groups = t.kv_heads;
  if (layer.projections.weight.defined()) {
    const at::Tensor all = layer.projections.weight.tensor().to(at::kDouble);
    query = all.narrow(0, 0, t.heads * t.head_width);
    key = all.narrow(0, t.heads * t.head_width, t.kv_heads * t.head_width);
  } else {
    if (is<FromValue>(t.key)) {
      key = at::matmul(matrix_of(layer.key_from_value, layer.width, options),
                       matrix_of(layer.value, layer.width, options));
    } else {
      key = matrix_of(layer.key, layer.width, options);
    }
    query = is<SameAsKey>(t.query) ? key : matrix_of(layer.query, layer.width, options);
    groups = t.scores == Form::collapsed ? 1 : t.kv_heads;
  }
  const int64_t query_width = query.size(0) / t.heads, key_width = key.size(0) / groups;
  for (int64_t h = 0; h < t.heads; ++h) {
    const int64_t g = h * groups / t.heads;
    maps.heads.emplace_back(query.narrow(0, h * query_width, query_width).t(),
                            key.narrow(0, g * key_width, key_width).t());
  }
  return maps;
}

at::Tensor output_map(const AttentionLayer& layer) {
  if (layer.output.weight.defined()) {
    return layer.output.weight.tensor().to(at::kDouble);
  }
  const at::TensorOptions found =
      layer.projections.weight.defined() ? layer.projections.weight.tensor().options() : at::TensorOptions();
  return at::eye(layer.width, found.dtype(at::kDouble));
}

}  // namespace pare
