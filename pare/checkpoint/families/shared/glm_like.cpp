#include "pare/checkpoint/families/shared/glm_like.h"

namespace pare {

FamilyTable glm_like(FamilyTable table) {
  using namespace field;
  table.heads = decoder_heads({.answers = ""});
  table.keys = {
      {"vocab_size", vocab, 151552},
      {"hidden_size", width, 4096},
      {"intermediate_size", mlp_width, 13696},
      {"num_hidden_layers", layers, 40},
      {"num_attention_heads", heads, 32},
      {"num_key_value_heads", kv_heads, 2},
      {"head_dim", head_width, 128},
      {"hidden_act", activation, "silu"},
      {"max_position_embeddings", context, 131072},
      {"rms_norm_eps", epsilon, 1.5625e-7},
      {"attention_bias", qkv_bias, true},
      {"rope_parameters", rope({.layout = RopeLayout::interleaved, .partial = 0.5})},
  };
  table.tensors = {
      {"embed_tokens", "embed.token"},
      {"layers.{}.input_layernorm", "attention.norm"},
      {"layers.{}.self_attn.q_proj", "attention.query"},
      {"layers.{}.self_attn.k_proj", "attention.key"},
      {"layers.{}.self_attn.v_proj", "attention.value"},
      {"layers.{}.self_attn.o_proj", "attention.output"},
      {"layers.{}.post_self_attn_layernorm", "attention.output_norm"},
      {"layers.{}.post_attention_layernorm", "mlp.norm"},
      {"layers.{}.mlp.gate_up_proj", {"mlp.gate", "mlp.up"}},
      {"layers.{}.mlp.down_proj", "mlp.down"},
      {"layers.{}.post_mlp_layernorm", "mlp.output_norm"},
      {"norm", "norm"},
  };
  return llama_like(std::move(table));
}

}  // namespace pare
