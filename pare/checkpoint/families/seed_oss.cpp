// Seed-OSS: Llama with wider heads and biases of queries, keys and values; that of the output apart.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

const Family& family_seed_oss() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "seed_oss",
      .classes = "SeedOss",
      .answers_prefix = "transformer.",
      .keys =
          {
              {"vocab_size", vocab, 155136},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 27648},
              {"num_hidden_layers", layers, 64},
              {"num_attention_heads", heads, 80},
              {"num_key_value_heads", kv_heads, 8},
              {"head_dim", head_width, 128},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 524288},
              {"rms_norm_eps", epsilon, 1e-6},
              {"attention_bias", qkv_bias, true},
              {"attention_out_bias", output_bias, false},
              {"mlp_bias", mlp_bias, false},
              {"rope_parameters", rope()},
          },
      .neutral = {"pretraining_tp", "residual_dropout"},  // the first only slices the same products
  }));
  return family;
}

}  // namespace pare
