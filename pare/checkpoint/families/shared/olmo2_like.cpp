#include "pare/checkpoint/families/shared/olmo2_like.h"

namespace pare {

FamilyTable olmo2_like(FamilyTable table) {
  using namespace field;
  const Attention attention = {.qk_norm = rms_norm(), .qk_norm_over = QkNormOver::layer, .output_norm = rms_norm()};
  table.model = llama_model(attention);
  table.model.final_norm = rms_norm();
  table.heads = decoder_heads({.tokens = "", .answers = ""});
  const std::vector<Key> before = {
      {"vocab_size", vocab, 50304},
      {"hidden_size", width, 4096},
      {"intermediate_size", mlp_width, 11008},
      {"num_hidden_layers", layers, 32},
      {"num_attention_heads", heads, 32},
      {"num_key_value_heads", kv_heads},
      {"head_dim", odd_head_width},
      {"hidden_act", activation, "silu"},
      {"max_position_embeddings", context, 2048},
      {"rms_norm_eps", epsilon, 1e-5},
      {"attention_bias", attention_bias, false},
      {"clip_qkv", only(nullptr, "queries, keys and values that are cut off are no linear maps")},
  };
  table.keys.insert(table.keys.begin(), before.begin(), before.end());
  table.tensors = {
      {"embed_tokens", "embed.token"},
      {"layers.{}.self_attn.q_proj", "attention.query"},
      {"layers.{}.self_attn.k_proj", "attention.key"},
      {"layers.{}.self_attn.v_proj", "attention.value"},
      {"layers.{}.self_attn.o_proj", "attention.output"},
      {"layers.{}.self_attn.q_norm", "attention.query_norm"},
      {"layers.{}.self_attn.k_norm", "attention.key_norm"},
      {"layers.{}.post_attention_layernorm", "attention.output_norm"},
      {"layers.{}.mlp.up_proj", "mlp.up"},
      {"layers.{}.mlp.gate_proj", "mlp.gate"},
      {"layers.{}.mlp.down_proj", "mlp.down"},
      {"layers.{}.post_feedforward_layernorm", "mlp.output_norm"},
      {"norm", "norm"},
  };
  return llama_like(std::move(table));
}

}  // namespace pare
