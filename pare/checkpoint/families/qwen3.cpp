// Qwen 3: Llama with a norm on every query and key head, and a window for some of its layers.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

const Family& family_qwen3() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "qwen3",
      .classes = "Qwen3",
      .answers_prefix = "transformer.",
      .model = llama_model({.qk_norm = rms_norm(), .norm = rms_norm()}),
      .keys =
          {
              {"vocab_size", vocab, 151936},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 22016},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads, 32},
              {"head_dim", head_width, 128},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 32768},
              {"rms_norm_eps", epsilon, 1e-6},
              {"attention_bias", attention_bias, false},
              {"rope_parameters", rope()},
              {"sliding_window", window, 4096},
              {"layer_types", late_windows},
          },
  }));
  return family;
}

}  // namespace pare
