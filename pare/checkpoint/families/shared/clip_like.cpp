#include "pare/checkpoint/families/shared/clip_like.h"

namespace pare {

Block clip_block(Mask mask) {
  return {.attention = {.bias = {true, true, true, true}, .mask = mask, .norm = layer_norm()},
          .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}};
}

std::vector<TensorRow> clip_layers() {
  return {
      {"encoder.layers.{}.layer_norm1", "attention.norm"},
      {"encoder.layers.{}.self_attn.q_proj", "attention.query"},
      {"encoder.layers.{}.self_attn.k_proj", "attention.key"},
      {"encoder.layers.{}.self_attn.v_proj", "attention.value"},
      {"encoder.layers.{}.self_attn.out_proj", "attention.output"},
      {"encoder.layers.{}.layer_norm2", "mlp.norm"},
      {"encoder.layers.{}.mlp.fc1", "mlp.up"},
      {"encoder.layers.{}.mlp.fc2", "mlp.down"},
  };
}

HeadTransform projection(bool bias) {
  return {.activation = Activation::identity, .bias = bias};
}

const Field projection_width = {
    [](Config& config, const Key& key, Draft& draft) {
      const int64_t usual = key.fallback.is_null() ? draft.a.width : key.fallback.get<int64_t>();
      const int64_t width = config.integer(key.names, usual, 1, most::width);
      if (draft.a.head.transform) {
        draft.a.head.transform->width = width == draft.a.width ? std::nullopt : std::optional(width);
      }
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      if (draft.a.head.transform) {
        config[key.name()] = draft.a.head.transform->width.value_or(draft.a.width);
      }
    }};

}  // namespace pare
