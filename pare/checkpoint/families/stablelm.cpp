// StableLM: Llama with LayerNorms and heads of which a quarter turns; both sublayers in turn, or side by side behind
// one norm; where asked for with a LayerNorm over each query and key, which has gains of its own.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

static const Field side_by_side = field::flag([](const Draft& d) { return d.block.wiring == Wiring::parallel; },
                                              [](Draft& d, bool value) {
                                                if (value) {
                                                  d.block.wiring = Wiring::parallel;
                                                  d.block.mlp->norm.reset();
                                                }
                                              });

// Gains for each head, stored head by head.
static const Field norm_of_each_head =
    field::flag([](const Draft& d) { return d.block.attention.qk_norm.has_value(); },
                [](Draft& d, bool value) {
                  if (value) {
                    Attention& attention = d.block.attention;
                    attention.qk_norm = Norm{.kind = NormKind::layer, .epsilon = attention.norm->epsilon};
                    attention.qk_norm_over = QkNormOver::each_head;
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
              {"qk_layernorm", norm_of_each_head, false},
          },
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.input_layernorm", "attention.norm"},
              {"layers.{}.self_attn.q_proj", "attention.query"},
              {"layers.{}.self_attn.k_proj", "attention.key"},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.o_proj", "attention.output"},
              {"layers.{}.self_attn.q_layernorm.norms.*", "attention.query_norm"},
              {"layers.{}.self_attn.k_layernorm.norms.*", "attention.key_norm"},
              {"layers.{}.post_attention_layernorm", "mlp.norm"},
              {"layers.{}.mlp.up_proj", "mlp.up"},
              {"layers.{}.mlp.gate_proj", "mlp.gate"},
              {"layers.{}.mlp.down_proj", "mlp.down"},
              {"norm", "norm"},
          },
      .ignored = {"model.layers.*.self_attn.rotary_emb.inv_freq"},
  }));
  return family;
}

}  // namespace pare
