// Mistral: Llama with one window for all layers.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

const Family& family_mistral() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "mistral",
      .classes = "Mistral",
      .keys =
          {
              {"vocab_size", vocab, 32000},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 14336},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads, 8},
              {"head_dim", head_width},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 131072},
              {"rms_norm_eps", epsilon, 1e-6},
              {"rope_parameters", rope()},
              {"sliding_window", window, 4096},
          },
      .ignored = {"model.layers.*.rotary_emb.inv_freq"},
  }));
  return family;
}

}  // namespace pare
