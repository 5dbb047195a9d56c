// Qwen 2: Llama with biases of queries, keys and values, and a window for some of its layers.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

const Family& family_qwen2() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "qwen2",
      .classes = "Qwen2",
      .answers_prefix = "transformer.",
      .model = llama_model({.bias = {.query = true, .key = true, .value = true}, .norm = rms_norm()}),
      .keys =
          {
              {"vocab_size", vocab, 151936},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 22016},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads, 32},
              {"head_dim", head_width},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 32768},
              {"rms_norm_eps", epsilon, 1e-6},
              {"rope_parameters", rope()},
              {"use_mrope", only(false, "positions of images are not supported")},
              {"sliding_window", window, 4096},
              {"layer_types", late_windows},
          },
  }));
  return family;
}

}  // namespace pare
