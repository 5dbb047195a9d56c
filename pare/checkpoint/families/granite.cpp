// Granite: Llama whose embeddings, scores, sublayers and logits are multiplied by numbers of its own.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

const Family& family_granite() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "granite",
      .classes = "Granite",
      .heads = decoder_heads({.sequences = false, .tokens = "", .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 32000},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 11008},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads},
              {"head_dim", odd_head_width},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 2048},
              {"rms_norm_eps", epsilon, 1e-6},
              {"attention_bias", attention_bias, false},
              {"rope_parameters", rope()},
              {"mlp_bias", mlp_bias, false},
              {"embedding_multiplier", embedding_scale, 1},
              {"attention_multiplier", attention_scale, 1},
              {"residual_multiplier", residual_scale, 1},
              {"logits_scaling", head_divisor, 1},
          },
  }));
  return family;
}

}  // namespace pare
