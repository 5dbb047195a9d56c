// Helium: Llama whose heads turn in neighbouring pairs and make up the width.

#include <fmt/format.h>

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

static void finish(Config& config, Draft& draft) {
  const Attention& attention = draft.block.attention;
  if (attention.heads * attention.head_width != draft.a.width) {
    config.problem(fmt::format("head_dim {} times num_attention_heads {} is not hidden_size {}, as Helium has it",
                               attention.head_width, attention.heads, draft.a.width));
  }
}

const Family& family_helium() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "helium",
      .classes = "Helium",
      .heads = decoder_heads({.answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 48000},
              {"hidden_size", width, 2560},
              {"intermediate_size", mlp_width, 7040},
              {"num_hidden_layers", layers, 24},
              {"num_attention_heads", heads, 20},
              {"num_key_value_heads", kv_heads, 20},
              {"head_dim", head_width, 128},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 4096},
              {"rms_norm_eps", epsilon, 1e-8},
              {"attention_bias", qkv_bias, false},
              {"mlp_bias", mlp_bias, false},
              {"rope_parameters", rope({.layout = RopeLayout::interleaved, .theta = 100000})},
          },
      .finish = finish,
  }));
  return family;
}

}  // namespace pare
