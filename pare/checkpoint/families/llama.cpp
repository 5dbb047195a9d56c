// Llama: rotary positions, RMSNorm before each sublayer, grouped key/value heads, gated MLP.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

const Family& family_llama() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "llama",
      .classes = "Llama",
      .answers_prefix = "transformer.",
      .keys =
          {
              {"vocab_size", vocab, 32000},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 11008},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads},
              {"head_dim", head_width},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 2048},
              {"rms_norm_eps", epsilon, 1e-6},
              {"attention_bias", attention_bias, false},
              {"rope_parameters", rope()},
              {"mlp_bias", mlp_bias, false},
          },
      .neutral = {"pretraining_tp"},  // it only slices the same products
      .ignored = {"model.layers.*.rotary_emb.inv_freq"},
  }));
  return family;
}

}  // namespace pare
