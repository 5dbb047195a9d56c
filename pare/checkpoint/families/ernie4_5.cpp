// ERNIE 4.5, the dense ones: Llama whose heads turn in neighbouring pairs, with biases everywhere or nowhere.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

const Family& family_ernie4_5() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "ernie4_5",
      .classes = "Ernie4_5",
      .heads = decoder_heads({.tied = true, .sequences = false, .tokens = "", .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 103424},
              {"hidden_size", width, 1024},
              {"intermediate_size", mlp_width, 3072},
              {"num_hidden_layers", layers, 18},
              {"num_attention_heads", heads, 16},
              {"num_key_value_heads", kv_heads, 2},
              {"head_dim", head_width, 128},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 131072},
              {"rms_norm_eps", epsilon, 1e-5},
              {"use_bias", biases, false},
              {"rope_parameters", rope({.layout = RopeLayout::interleaved, .theta = 500000})},
          },
  }));
  return family;
}

}  // namespace pare
