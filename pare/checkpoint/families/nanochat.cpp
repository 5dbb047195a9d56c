// nanochat: norms without gains, also behind the embedding and behind the rotation of queries and keys, which turns the
// other way; an MLP without a gate; capped logits.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

static const Norm plain_norm = {.kind = NormKind::rms, .gain = false};
static const Norm turned_norm = {.kind = NormKind::rms, .place = NormPlace::post, .gain = false};

const Family& family_nanochat() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "nanochat",
      .classes = "NanoChat",
      .model = {.embedding = {.norm = plain_norm},
                .blocks = {{.attention = {.qk_norm = turned_norm, .norm = plain_norm},
                            .mlp = Mlp{.kind = DenseMlp{}, .norm = plain_norm}}},
                .final_norm = plain_norm},
      .heads = decoder_heads({.sequences = false, .tokens = "", .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 50304},
              {"hidden_size", width, 768},
              {"intermediate_size", mlp_width, 8192},
              {"num_hidden_layers", layers, 12},
              {"num_attention_heads", heads, 6},
              {"num_key_value_heads", kv_heads},
              {"head_dim", head_width},
              {"hidden_act", activation, "relu2"},
              {"max_position_embeddings", context, 2048},
              {"rms_norm_eps", epsilon, 1e-6},
              {"attention_bias", attention_bias, false},
              {"rope_parameters", rope()},
              {"final_logit_softcapping", head_softcap, 15},
          },
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.self_attn.q_proj", "attention.query", Stored::turned_back},
              {"layers.{}.self_attn.k_proj", "attention.key", Stored::turned_back},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.o_proj", "attention.output"},
              {"layers.{}.mlp.fc1", "mlp.up"},
              {"layers.{}.mlp.fc2", "mlp.down"},
          },
  }));
  return family;
}

}  // namespace pare
