// StarCoder 2: rotary positions, grouped key/value heads, LayerNorm before each sublayer, biases in all of them.

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

const Family& family_starcoder2() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "starcoder2",
      .classes = "Starcoder2",
      .base_prefix = "model.",
      .model = {.blocks = {{.attention = {.norm = layer_norm()}, .mlp = Mlp{.norm = layer_norm()}}},
                .final_norm = layer_norm()},
      .heads = decoder_heads({.tied = true, .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 49152},
              {"hidden_size", width, 3072},
              {"intermediate_size", mlp_width, 12288},
              {"num_hidden_layers", layers, 30},
              {"num_attention_heads", heads, 24},
              {"num_key_value_heads", kv_heads, 2},
              {"head_dim", odd_head_width},
              {"hidden_act", activation, "gelu_pytorch_tanh"},
              {"max_position_embeddings", context, 4096},
              {"norm_epsilon", epsilon, 1e-5},
              {"use_bias", biases, true},
              {"rope_parameters", rope()},
              {"sliding_window", window},
              {"is_causal", only(true, "StarCoder 2 looks back only")},
          },
      // Of the code that trained it; transformers reads none of them.
      .neutral = {"activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type", "norm_type",
                  "scale_attention_softmax_in_fp32", "scale_attn_weights"},
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.input_layernorm", "attention.norm"},
              {"layers.{}.self_attn.q_proj", "attention.query"},
              {"layers.{}.self_attn.k_proj", "attention.key"},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.o_proj", "attention.output"},
              {"layers.{}.post_attention_layernorm", "mlp.norm"},
              {"layers.{}.mlp.c_fc", "mlp.up"},
              {"layers.{}.mlp.c_proj", "mlp.down"},
              {"norm", "norm"},
          },
  });
  return family;
}

}  // namespace pare
