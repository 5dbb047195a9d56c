// GPT-NeoX and Pythia: partly rotary heads, LayerNorm before each sublayer, both sublayers side by side or in turn, one
// fused matrix in which each head has its query, key and value rows together.

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

const Family& family_gpt_neox() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "gpt_neox",
      .classes = "GPTNeoX",
      .base_prefix = "gpt_neox.",
      .model = {.blocks = {{.attention = {.norm = layer_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}}},
                .final_norm = layer_norm()},
      .heads = decoder_heads({.language_model = "embed_out", .tokens = "classifier"}),
      .keys =
          {
              {"vocab_size", vocab, 50432},
              {"hidden_size", width, 6144},
              {"intermediate_size", mlp_width, 24576},
              {"num_hidden_layers", layers, 44},
              {"num_attention_heads", heads, 64},
              {"hidden_act", activation, "gelu"},
              {"max_position_embeddings", context, 2048},
              {"layer_norm_eps", epsilon, 1e-5},
              {"attention_bias", attention_bias, true},
              {"use_parallel_residual", parallel, true},
              {"rope_parameters", rope({.partial = 0.25, .theta_key = "rotary_emb_base", .partial_key = "rotary_pct"})},
              {"head_dim", repeats(head_width, "the heads of GPT-NeoX divide its width")},
              {"is_causal", only(true, "GPT-NeoX looks back only")},
          },
      .tensors =
          {
              {"embed_in", "embed.token"},
              {"layers.{}.input_layernorm", "attention.norm"},
              {"layers.{}.attention.query_key_value",
               {"attention.query", "attention.key", "attention.value"},
               Stored::by_key_heads},
              {"layers.{}.attention.dense", "attention.output"},
              {"layers.{}.post_attention_layernorm", "mlp.norm"},
              {"layers.{}.mlp.dense_h_to_4h", "mlp.up"},
              {"layers.{}.mlp.dense_4h_to_h", "mlp.down"},
              {"final_layer_norm", "norm"},
          },
      .ignored = {"gpt_neox.layers.*.attention.bias", "gpt_neox.layers.*.attention.masked_bias",
                  "gpt_neox.layers.*.attention.rotary_emb.inv_freq"},
      // transformers 5 has the second name in memory and writes the first.
      .renamed = {{"lm_head.weight", "embed_out.weight"}},
  });
  return family;
}

}  // namespace pare
