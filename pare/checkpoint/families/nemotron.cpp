// Nemotron: LayerNorms that add 1 to their gains, heads of which a half turns, an MLP of squared ReLUs without a gate.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

static const Norm offset_norm = {.kind = NormKind::layer, .bias = true, .offset = 1};

const Family& family_nemotron() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "nemotron",
      .classes = "Nemotron",
      .answers_prefix = "transformer.",
      .model = {.blocks = {{.attention = {.norm = offset_norm}, .mlp = Mlp{.norm = offset_norm}}},
                .final_norm = offset_norm},
      .keys =
          {
              {"vocab_size", vocab, 256000},
              {"hidden_size", width, 6144},
              {"intermediate_size", mlp_width, 24576},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 48},
              {"num_key_value_heads", kv_heads},
              {"head_dim", head_width},
              {"hidden_act", activation, "relu2"},
              {"max_position_embeddings", context, 4096},
              {"norm_eps", epsilon, 1e-5},
              {"attention_bias", attention_bias, false},
              {"mlp_bias", mlp_bias, false},
              {"rope_parameters", rope({.partial = 0.5})},
          },
  }));
  return family;
}

}  // namespace pare
