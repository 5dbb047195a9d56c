// GPT-J: interleaved rotary positions on the first dimensions of each head, attention and MLP side by side behind one
// LayerNorm, biases in the MLP and the head only.

#include <fmt/format.h>

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

// How many dimensions of a head turn.
const Field rotary_width = {
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

const Family& family_gptj() {
  using namespace field;
  static const Family
      family =
          make_family(
              {
                  .model_type = "gptj",
                  .classes = "GPTJ",
                  .base_prefix = "transformer.",
                  .model = {.blocks = {{.wiring = Wiring::parallel,
                                        .attention = {.norm = layer_norm()},
                                        .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}}}},
                            .final_norm = layer_norm()},
                  .heads = decoder_heads({.language_bias = true, .tokens = ""}),
                  .keys =
                      {
                          {"vocab_size", vocab, 50400},
                          {{"n_positions", "max_position_embeddings"}, context, 2048},
                          {{"n_embd", "hidden_size"}, width, 4096},
                          {{"n_layer", "num_hidden_layers"}, layers, 28},
                          {{"n_head", "num_attention_heads"}, heads, 16},
                          {"n_inner", mlp_width},
                          {"rotary_dim", rotary_width, 64},
                          {"activation_function", activation, "gelu_new"},
                          {"layer_norm_epsilon", epsilon, 1e-5},
                          {"is_causal", only(true, "GPT-J looks back only")},
                          {"rotary", only(true, "GPT-J has no other positions")},
                          {"scale_attn_weights", only(true, "GPT-J divides its scores by the root of the head width")},
                      },
                  .neutral = {"n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                              "summary_type", "summary_use_proj"},
                  .tensors =
                      {
                          {"wte", "embed.token"},
                          {"h.{}.ln_1", "attention.norm"},
                          {"h.{}.attn.q_proj", "attention.query"},
                          {"h.{}.attn.k_proj", "attention.key"},
                          {"h.{}.attn.v_proj", "attention.value"},
                          {"h.{}.attn.out_proj", "attention.output"},
                          {"h.{}.mlp.fc_in", "mlp.up"},
                          {"h.{}.mlp.fc_out", "mlp.down"},
                          {"ln_f", "norm"},
                      },
                  .ignored = {"transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"},
              });
  return family;
}

}  // namespace pare
