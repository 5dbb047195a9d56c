// BLOOM: ALiBi beside scores that are already scaled, a LayerNorm behind the embedding and before each sublayer, a GELU
// with a constant of eight digits, one fused matrix in which each head has its query, key and value rows together.

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

namespace {

// No key says how wide the MLPs are.
const Field width_and_mlp = {
    [](Config& config, const Key& key, Draft& draft) {
      field::width.read(config, key, draft);
      draft.mlp.width = 4 * draft.a.width;
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) { field::width.write(config, key, draft); }};

// Neither key says anything without the other.
const Field slices = {[](Config& config, const Key& key, Draft&) {
  const bool sliced = config.integer("pretraining_tp", 1, 1, most::width) > 1;
  if (config.flag(key.name(), false) && sliced) {
    config.problem("slow_but_exact is true, and pretraining_tp above 1: transformers then leaves two biases out");
  }
}};

Architecture model_of_bloom() {
  const DenseMlp mlp = {.activation = Activation::gelu_bloom, .bias = {.up = true, .down = true}};
  return {.embedding = {.norm = layer_norm()},
          .blocks =
              {{.attention = {.bias = {true, true, true, true}, .alibi = Alibi{.scaled = false}, .norm = layer_norm()},
                .mlp = Mlp{.kind = mlp, .norm = layer_norm()}}},
          .final_norm = layer_norm()};
}

}  // namespace

const Family& family_bloom() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "bloom",
      .classes = "Bloom",
      .base_prefix = "transformer.",
      .model = model_of_bloom(),
      .heads = decoder_heads({.tied = true, .tokens = "classifier"}),
      .keys =
          {
              {"vocab_size", vocab, 250880},
              {{"hidden_size", "n_embed"}, width_and_mlp, 64},
              {{"n_layer", "num_hidden_layers"}, layers, 2},
              {{"n_head", "num_attention_heads"}, heads, 8},
              {"seq_length", context, 2048},  // that of training: ALiBi has no end, and transformers reads none
              {"layer_norm_epsilon", epsilon, 1e-5},
              {"n_inner", repeats(mlp_width, "the MLPs of BLOOM are four times as wide as the model")},
              {"apply_residual_connection_post_layernorm", only(false, "BLOOM's skips start before the norm")},
              {"slow_but_exact", slices},
              {"is_causal", only(true, "BLOOM looks back only")},
          },
      // Of Megatron, where it was trained.
      .neutral = {"attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi",
                  "pretraining_tp", "skip_bias_add", "skip_bias_add_qkv"},
      .tensors =
          {
              {"word_embeddings", "embed.token"},
              {"word_embeddings_layernorm", "embed.norm"},
              {"h.{}.input_layernorm", "attention.norm"},
              {"h.{}.self_attention.query_key_value",
               {"attention.query", "attention.key", "attention.value"},
               Stored::by_key_heads},
              {"h.{}.self_attention.dense", "attention.output"},
              {"h.{}.post_attention_layernorm", "mlp.norm"},
              {"h.{}.mlp.dense_h_to_4h", "mlp.up"},
              {"h.{}.mlp.dense_4h_to_h", "mlp.down"},
              {"ln_f", "norm"},
          },
  });
  return family;
}

}  // namespace pare
