// Phi-1, Phi-1.5 and Phi-2: partly rotary, grouped heads, biases everywhere, attention and MLP side by side behind one
// LayerNorm, and where asked for a LayerNorm over each query and key.

#include <fmt/format.h>

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

static void finish(Config& config, Draft& draft) {
  const Attention& attention = draft.block.attention;
  if (attention.qk_norm && attention.head_width != draft.a.width / attention.heads) {
    config.problem(fmt::format("head_dim is {}; with qk_layernorm it has to be hidden_size {} / num_attention_heads {}",
                               attention.head_width, draft.a.width, attention.heads));
  }
}

const Family& family_phi() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "phi",
      .classes = "Phi",
      .base_prefix = "model.",
      .model = {.blocks = {{.wiring = Wiring::parallel,
                            .attention = {.bias = {true, true, true, true}, .norm = layer_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}}}},
                .final_norm = layer_norm()},
      .heads = decoder_heads({.language_bias = true, .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 51200},
              {"hidden_size", width, 2048},
              {"intermediate_size", mlp_width, 8192},
              {"num_hidden_layers", layers, 24},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads},
              {"hidden_act", activation, "gelu_new"},
              {"max_position_embeddings", context, 2048},
              {"layer_norm_eps", epsilon, 1e-5},
              {"qk_layernorm", qk_norm, false},
              {"head_dim", odd_head_width},
              {"rope_parameters", rope({.partial = 0.5})},
              {"is_causal", only(true, "Phi looks back only")},
              {"auto_map", own_classes("Phi")},
          },
      .finish = finish,
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.input_layernorm", "attention.norm"},
              {"layers.{}.self_attn.q_proj", "attention.query"},
              {"layers.{}.self_attn.k_proj", "attention.key"},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.dense", "attention.output"},
              {"layers.{}.self_attn.q_layernorm", "attention.query_norm"},
              {"layers.{}.self_attn.k_layernorm", "attention.key_norm"},
              {"layers.{}.mlp.fc1", "mlp.up"},
              {"layers.{}.mlp.fc2", "mlp.down"},
              {"final_layernorm", "norm"},
          },
      .ignored = {"model.layers.*.self_attn.rotary_emb.inv_freq"},
  });
  return family;
}

}  // namespace pare
