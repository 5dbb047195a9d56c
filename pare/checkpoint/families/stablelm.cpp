// StableLM: Llama with LayerNorms and heads of which a quarter turns; both sublayers in turn, or side by side behind
// one norm.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

static const Field side_by_side = field::flag([](const Draft& d) { return d.block.wiring == Wiring::parallel; },
                                              [](Draft& d, bool value) {
                                                if (value) {
                                                  d.block.wiring = Wiring::parallel;
                                                  d.block.mlp->norm.reset();
                                                }
                                              });

const Family& family_stablelm() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "stablelm",
      .classes = "StableLm",
      .model = llama_model({.norm = layer_norm()}),
      .heads = decoder_heads({.answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 50304},
              {"hidden_size", width, 2560},
              {"intermediate_size", mlp_width, 6912},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads, 32},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 4096},
              {"use_parallel_residual", side_by_side, false},
              {{"layer_norm_eps", "norm_eps"}, epsilon, 1e-5},
              {"use_qkv_bias", qkv_bias, false},
              {"rope_parameters", rope({.partial = 0.25, .partial_key = "partial_rotary_factor"})},
              {"qk_layernorm", only(false, "a norm of queries and keys with gains for each head is not supported")},
          },
      .ignored = {"model.layers.*.self_attn.rotary_emb.inv_freq"},
  }));
  return family;
}

}  // namespace pare
