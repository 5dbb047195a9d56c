// BioGPT: learned positions that begin two rows into their table, a scaled embedding, LayerNorm before each sublayer.

#include <cmath>

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

static const Field scaled_embedding = field::flag(
    [](const Draft& d) { return d.a.embedding.scale != 1; },
    [](Draft& d, bool scaled) { d.a.embedding.scale = scaled ? std::sqrt(static_cast<double>(d.a.width)) : 1; });

const Family& family_biogpt() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "biogpt",
      .classes = "BioGpt",
      .base_prefix = "biogpt.",
      .model = {.embedding = {.position = Position::learned, .position_offset = 2},
                .blocks = {{.attention = {.bias = {true, true, true, true}, .norm = layer_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}}},
                .final_norm = layer_norm()},
      .heads = decoder_heads(
          {.tied = true, .language_model = "output_projection", .tokens = "classifier", .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 42384},
              {"hidden_size", width, 1024},
              {"num_hidden_layers", layers, 24},
              {"num_attention_heads", heads, 16},
              {"intermediate_size", mlp_width, 4096},
              {"hidden_act", activation, "gelu"},
              {"max_position_embeddings", context, 1024},
              {"scale_embedding", scaled_embedding, true},
              {"is_causal", only(true, "BioGPT looks back only")},
          },
      // transformers gives its norms 1e-5, whatever layer_norm_eps says.
      .neutral = {"layer_norm_eps", "layerdrop"},
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"embed_positions", "embed.position"},
              {"layers.{}.self_attn.q_proj", "attention.query"},
              {"layers.{}.self_attn.k_proj", "attention.key"},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.out_proj", "attention.output"},
              {"layers.{}.self_attn_layer_norm", "attention.norm"},
              {"layers.{}.fc1", "mlp.up"},
              {"layers.{}.fc2", "mlp.down"},
              {"layers.{}.final_layer_norm", "mlp.norm"},
              {"layer_norm", "norm"},
          },
  });
  return family;
}

}  // namespace pare
