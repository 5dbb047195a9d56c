// GPT-2: learned positions, LayerNorm before each sublayer, one fused [in, out] matrix for queries, keys and values.

#include <cmath>

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

// Scores may be divided by the number of the layer, too, or by nothing.
const Field scales = {
    [](Config& config, const Key& key, Draft& draft) {
      const bool scaled = config.flag(key.name(), true);
      const bool by_layer = config.flag("scale_attn_by_inverse_layer_idx", false);
      const double scale = scaled ? 1 / std::sqrt(static_cast<double>(draft.block.attention.head_width)) : 1;
      if (by_layer || !scaled) {
        draft.by_layer.emplace_back([=](int64_t layer, Block& block) {
          block.attention.scale = by_layer ? scale / static_cast<double>(layer + 1) : scale;
        });
      }
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      const std::optional<double> first = draft.block.attention.scale, last = draft.a.blocks.back().attention.scale;
      const bool scaled = first != 1.0;
      config[key.name()] = scaled;
      config["scale_attn_by_inverse_layer_idx"] = scaled ? first.has_value() : last != first;
    }};

const Family& family_gpt2() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "gpt2",
      .classes = "GPT2",
      .base_prefix = "transformer.",
      .model = {.embedding = {.position = Position::learned},
                .blocks = {{.attention = {.bias = {true, true, true, true}, .norm = layer_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}}},
                .final_norm = layer_norm()},
      .heads = decoder_heads({.tied = true, .language_class = "LMHeadModel", .tokens = "classifier"}),
      .keys =
          {
              {"vocab_size", vocab, 50257},
              {{"n_positions", "max_position_embeddings"}, context, 1024},
              {{"n_embd", "hidden_size"}, width, 768},
              {{"n_layer", "num_hidden_layers"}, layers, 12},
              {{"n_head", "num_attention_heads"}, heads, 12},
              {"n_inner", mlp_width},
              {"activation_function", activation, "gelu_new"},
              {"layer_norm_epsilon", epsilon, 1e-5},
              {"scale_attn_weights", scales},
              {"is_causal", only(true, "GPT-2 looks back only")},
          },
      // reorder_and_upcast_attn only chooses the precision of the scores.
      .neutral = {"n_ctx", "predict_special_tokens", "reorder_and_upcast_attn", "summary_activation",
                  "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"},
      .tensors =
          {
              {"wte", "embed.token"},
              {"wpe", "embed.position"},
              {"h.{}.ln_1", "attention.norm"},
              {"h.{}.attn.c_attn",
               {"attention.query", "attention.key", "attention.value"},
               Stored::transposed},
              {"h.{}.attn.c_proj", "attention.output", Stored::transposed},
              {"h.{}.ln_2", "mlp.norm"},
              {"h.{}.mlp.c_fc", "mlp.up", Stored::transposed},
              {"h.{}.mlp.c_proj", "mlp.down", Stored::transposed},
              {"ln_f", "norm"},
          },
      .ignored = {"transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"},
  });
  return family;
}

}  // namespace pare
