#include "pare/checkpoint/families/shared/cohere_like.h"

#include "pare/checkpoint/families/shared/decoder_heads.h"

namespace pare {

FamilyTable cohere_like(FamilyTable table) {
  using namespace field;
  const Norm norm = {.kind = NormKind::layer};
  table.base_prefix = "model.";
  table.model = {.blocks = {{.wiring = Wiring::parallel,
                             .attention = {.norm = norm},
                             .mlp = Mlp{.kind = DenseMlp{.gated = true}}}},
                 .final_norm = norm};
  table.heads = decoder_heads({.tied = true, .sequences = false, .tokens = "", .answers = ""});
  const std::vector<Key> before = {
      {"vocab_size", vocab, 256000},
      {"hidden_size", width, 8192},
      {"intermediate_size", mlp_width, 22528},
      {"num_hidden_layers", layers, 40},
      {"num_attention_heads", heads, 64},
      {"num_key_value_heads", kv_heads},
      {"head_dim", odd_head_width},
      {"hidden_act", activation, "silu"},
      {"max_position_embeddings", context, 8192},
      {"layer_norm_eps", epsilon, 1e-5},
      {"attention_bias", attention_bias, false},
      {"logit_scale", head_scale, 0.0625},
      {"rope_parameters", rope(cohere_rope)},
  };
  table.keys.insert(table.keys.begin(), before.begin(), before.end());
  // What published files say of all models of the family, and transformers does not ask.
  const std::string_view all = "the model of the family in transformers is no other";
  const std::vector<Key> said = {
      {"position_embedding_type", only("rope_gptj", all)},
      {"rotary_pct", only(1.0, all)},
      {"use_gated_activation", only(true, all)},
      {"use_parallel_block", only(true, all)},
      {"is_causal", only(true, "the family looks back only")},
  };
  table.keys.insert(table.keys.end(), said.begin(), said.end());
  // The last two are about training on several GPUs, and about tied heads, which tie_word_embeddings says.
  table.neutral = {"cache_implementation", "pretraining_tp", "use_parallel_embedding", "use_embedding_sharing"};
  table.tensors = {
      {"embed_tokens", "embed.token"},
      {"layers.{}.input_layernorm", "attention.norm"},
      {"layers.{}.self_attn.q_proj", "attention.query"},
      {"layers.{}.self_attn.k_proj", "attention.key"},
      {"layers.{}.self_attn.v_proj", "attention.value"},
      {"layers.{}.self_attn.o_proj", "attention.output"},
      {"layers.{}.self_attn.q_norm", "attention.query_norm"},
      {"layers.{}.self_attn.k_norm", "attention.key_norm"},
      {"layers.{}.mlp.up_proj", "mlp.up"},
      {"layers.{}.mlp.gate_proj", "mlp.gate"},
      {"layers.{}.mlp.down_proj", "mlp.down"},
      {"norm", "norm"},
  };
  return table;
}

}  // namespace pare
