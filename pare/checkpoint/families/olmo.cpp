// OLMo: Llama with LayerNorms that have neither gains nor biases.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

static const Norm plain_norm = {.kind = NormKind::layer, .epsilon = 1e-5, .gain = false};

const Family& family_olmo() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "olmo",
      .classes = "Olmo",
      .model = llama_model({.norm = plain_norm}),
      .heads = decoder_heads({.tokens = "", .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 50304},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 11008},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 2048},
              {"attention_bias", attention_bias, false},
              {"rope_parameters", rope()},
              {"clip_qkv", only(nullptr, "queries, keys and values that are cut off are no linear maps")},
          },
      .ignored = {"model.layers.*.rotary_emb.inv_freq"},
  }));
  return family;
}

}  // namespace pare
