// Ministral: Mistral with a window for some of its layers; where no list says which, for all.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

// Where there is no list, all slide if there is a window.
static const Field all_windows = {[](Config& config, const Key& key, Draft& draft) {
                                    if (config.has(key.name())) {
                                      field::layer_types(nullptr).read(config, key, draft);
                                    }
                                  },
                                  field::layer_types(nullptr).write};

const Family& family_ministral() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "ministral",
      .classes = "Ministral",
      .answers_prefix = "transformer.",
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
              {"layer_types", all_windows},
          },
  }));
  return family;
}

}  // namespace pare
