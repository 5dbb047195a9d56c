// Phi-3, Phi-3.5 and Phi-4: Llama with queries, keys and values in one matrix, and gate and up projection in another.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

// transformers takes "yarn" for "longrope" here.
static void finish(Config& config, Draft& draft) {
  const std::optional<Rope>& rope = draft.block.attention.rope;
  if (rope && rope->scaling && rope->scaling->kind != RopeScalingKind::longrope) {
    config.problem("the rope type of Phi-3 is default or longrope: transformers computes no other as it is named");
  }
}

const Family& family_phi3() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "phi3",
      .classes = "Phi3",
      .heads = decoder_heads({.answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 32064},
              {"hidden_size", width, 3072},
              {"intermediate_size", mlp_width, 8192},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 4096},
              {"rms_norm_eps", epsilon, 1e-5},
              {"rope_parameters", rope({.partial = 1})},
              {"sliding_window", window},
              {"attention_bias", only(false, "Phi-3 has no biases")},
              {"auto_map", own_classes("Phi3")},
          },
      .neutral = {"original_max_position_embeddings", "resid_pdrop", "embd_pdrop"},
      .finish = finish,
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.input_layernorm", "attention.norm"},
              {"layers.{}.self_attn.qkv_proj", {"attention.query", "attention.key", "attention.value"}},
              {"layers.{}.self_attn.o_proj", "attention.output"},
              {"layers.{}.post_attention_layernorm", "mlp.norm"},
              {"layers.{}.mlp.gate_up_proj", {"mlp.gate", "mlp.up"}},
              {"layers.{}.mlp.down_proj", "mlp.down"},
              {"norm", "norm"},
          },
  }));
  return family;
}

}  // namespace pare
