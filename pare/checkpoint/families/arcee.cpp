// Arcee (AFM): Llama with an MLP that has no gate, of squared ReLUs.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

const Family& family_arcee() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "arcee",
      .classes = "Arcee",
      .answers_prefix = "transformer.",
      .model = {.blocks = {{.attention = {.norm = rms_norm()}, .mlp = Mlp{.norm = rms_norm()}}},
                .final_norm = rms_norm()},
      .keys =
          {
              {"vocab_size", vocab, 32000},
              {"hidden_size", width, 2560},
              {"intermediate_size", mlp_width, 18432},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads},
              {"head_dim", head_width},
              {"hidden_act", activation, "relu2"},
              {"max_position_embeddings", context, 4096},
              {"rms_norm_eps", epsilon, 1e-5},
              {"attention_bias", attention_bias, false},
              {"mlp_bias", mlp_bias, false},
              {"rope_parameters", rope()},
          },
  }));
  return family;
}

}  // namespace pare
