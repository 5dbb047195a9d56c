#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

Architecture llama_model(const Attention& attention) {
  const Mlp mlp = {.kind = DenseMlp{.gated = true}, .norm = attention.norm, .output_norm = attention.output_norm};
  return {.blocks = {{.attention = attention, .mlp = mlp}}, .final_norm = attention.norm};
}

FamilyTable llama_like(FamilyTable table) {
  table.base_prefix = "model.";
  table.keys.insert(table.keys.end(),
                    {{"is_causal", field::only(true, "the family looks back only")},
                     {"rope_interleaved", field::only(false, "its weights are stored for halves that turn")}});
  table.neutral.insert(table.neutral.end(), {"cache_implementation", "is_llama_config"});
  if (table.model.blocks.empty()) {
    table.model = llama_model();
  }
  if (table.heads.classes.empty()) {
    table.heads = decoder_heads({});
  }
  if (table.tensors.empty()) {
    table.tensors = {
        {"embed_tokens", "embed.token"},
        {"layers.{}.input_layernorm", "attention.norm"},
        {"layers.{}.self_attn.q_proj", "attention.query"},
        {"layers.{}.self_attn.k_proj", "attention.key"},
        {"layers.{}.self_attn.v_proj", "attention.value"},
        {"layers.{}.self_attn.o_proj", "attention.output"},
        {"layers.{}.self_attn.q_norm", "attention.query_norm"},
        {"layers.{}.self_attn.k_norm", "attention.key_norm"},
        {"layers.{}.post_attention_layernorm", "mlp.norm"},
        {"layers.{}.mlp.up_proj", "mlp.up"},
        {"layers.{}.mlp.gate_proj", "mlp.gate"},
        {"layers.{}.mlp.down_proj", "mlp.down"},
        {"norm", "norm"},
    };
  }
  return table;
}

}  // namespace pare
