#include "pare/checkpoint/families/shared/gptj_like.h"

#include <fmt/format.h>

namespace pare {

// How many dimensions of a head turn.
static const Field rotary_width = {
    [](Config& config, const Key& key, Draft& draft) {
      Attention& attention = draft.block.attention;
      if (config.is_null(key.name())) {
        config.problem(fmt::format("{} is null; expected how many dimensions of a head turn", key.name()));
      }
      attention.rope = Rope{.width = key.whole(config, 2, attention.head_width), .layout = RopeLayout::interleaved};
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      const Attention& attention = draft.block.attention;
      config[key.name()] = attention.rope ? attention.rope->width : attention.head_width;
    }};

FamilyTable gptj_like(FamilyTable table) {
  using namespace field;
  table.base_prefix = "transformer.";
  table.model = {.blocks = {{.wiring = Wiring::parallel,
                             .attention = {.norm = layer_norm()},
                             .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}}}},
                 .final_norm = layer_norm()};
  const std::vector<Key> keys = {
      {"vocab_size", vocab, 50400},
      {{"n_positions", "max_position_embeddings"}, context, 2048},
      {{"n_embd", "hidden_size"}, width, 4096},
      {{"n_layer", "num_hidden_layers"}, layers, 28},
      {{"n_head", "num_attention_heads"}, heads, 16},
      {"n_inner", mlp_width},
      {"rotary_dim", rotary_width, 64},
      {"activation_function", activation, "gelu_new"},
      {"layer_norm_epsilon", epsilon, 1e-5},
      {"is_causal", only(true, "the family looks back only")},
      {"rotary", only(true, "the family has no other positions")},
      {"scale_attn_weights", only(true, "the family divides its scores by the root of the head width")},
  };
  table.keys.insert(table.keys.begin(), keys.begin(), keys.end());
  table.neutral.insert(table.neutral.end(), {"n_ctx", "summary_activation", "summary_first_dropout",
                                             "summary_proj_to_labels", "summary_type", "summary_use_proj"});
  const std::vector<TensorRow> tensors = {
      {"wte", "embed.token"},       {"h.{}.ln_1", "attention.norm"}, {"h.{}.attn.out_proj", "attention.output"},
      {"h.{}.mlp.fc_in", "mlp.up"}, {"h.{}.mlp.fc_out", "mlp.down"}, {"ln_f", "norm"}};
  table.tensors.insert(table.tensors.end(), tensors.begin(), tensors.end());
  table.ignored.insert(table.ignored.end(), {"transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"});
  return table;
}

}  // namespace pare
