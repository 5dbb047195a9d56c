// Nomic BERT: BERT with rotary positions, gated MLPs and hardly a bias.

#include "pare/checkpoint/families/shared/bert_like.h"

namespace pare {

namespace {

Heads heads_of_nomic() {
  const HeadTransform pool = {.activation = Activation::tanh};
  return {.classes =
              {
                  {"Model", Task::encoder, {.transform = pool}, {{"nomic_bert.pooler.dense", "head.transform"}}},
                  {"ForMaskedLM",
                   Task::masked_lm,
                   {.bias = true, .transform = HeadTransform{.norm = layer_norm()}},
                   {{"cls.predictions.transform.dense", "head.transform"},
                    {"cls.predictions.transform.layer_norm", "head.transform.norm"},
                    {"cls.predictions.decoder", "head"}}},
                  {"ForTokenClassification", Task::token_classifier, {.bias = true}, {{"classifier", "head"}}},
                  {"ForSequenceClassification",
                   Task::classifier,
                   {.bias = true, .transform = pool},
                   {{"nomic_bert.pooler.dense", "head.transform"}, {"classifier", "head"}}},
              },
          .tied = true,
          .tied_bias = "cls.predictions.bias"};
}

}  // namespace

const Family& family_nomic_bert() {
  using namespace field;
  const Norm after = layer_norm(NormPlace::post);
  static const Family
      family =
          make_family(
              {
                  .model_type = "nomic_bert",
                  .classes = "NomicBert",
                  .base_prefix = "nomic_bert.",
                  .model = {.embedding = {.norm = layer_norm()},
                            .blocks = {{.attention = {.mask = Mask::full, .norm = after},
                                        .mlp = Mlp{.kind = DenseMlp{.gated = true}, .norm = after}}}},
                  .heads = heads_of_nomic(),
                  .keys =
                      {
                          {"vocab_size", vocab, 30528},
                          {{"hidden_size", "n_embd"}, width, 768},
                          {{"num_hidden_layers", "n_layer"}, layers, 12},
                          {{"num_attention_heads", "n_head"}, heads, 12},
                          {"head_dim", head_width},
                          {{"intermediate_size", "n_inner"}, mlp_width, 3072},
                          {"hidden_act", activation, "silu"},
                          {{"max_position_embeddings", "n_positions"}, context, 2048},
                          {"type_vocab_size", types, 2},
                          {{"layer_norm_eps", "layer_norm_epsilon"}, epsilon, 1e-12},
                          {"rope_parameters", rope({.theta = 1000})},
                          {"tie_word_embeddings", tied, true},
                          {"id2label", labels},
                          {"auto_map", own_classes("NomicBert")},
                          {"is_decoder", only(false, "an encoder used as a decoder is not supported")},
                          {"is_causal", only(false, "transformers then looks back only in batches without padding")},
                          // Of its first implementation, which transformers does not read: files say what is done
                          // anyway.
                          {"activation_function", only("swiglu", "Nomic BERT's gate is a SiLU")},
                          {"causal", only(false, "Nomic BERT looks both ways")},
                          {"mlp_fc1_bias", only(false, "Nomic BERT has no such bias")},
                          {"mlp_fc2_bias", only(false, "Nomic BERT has no such bias")},
                          {"parallel_block", only(false, "Nomic BERT's sublayers follow each other")},
                          {"prenorm", only(false, "Nomic BERT's norms are behind the sublayers")},
                          {"qkv_proj_bias", only(false, "Nomic BERT has no such bias")},
                          {"rotary_emb_base",
                           only(1000, "transformers then takes the base from rope_parameters, or 1000")},
                          {"rotary_emb_fraction", only(1.0, "all of a head turns")},
                          {"rotary_emb_interleaved", only(false, "halves of a head turn")},
                          {"rotary_emb_scale_base", only(nullptr, "no plane turns slower further on")},
                          {"rotary_scaling_factor", only(nullptr, "transformers does not read it")},
                          {"scale_attn_by_inverse_layer_idx", only(false, "all layers scale their scores alike")},
                          {"scale_attn_weights", only(true, "scores are scaled")},
                          {"use_rms_norm", only(false, "Nomic BERT's norms are LayerNorms")},
                      },
                  .neutral = {"dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "last_layer_subset",
                              "max_trained_positions", "pad_vocab_size_multiple", "parallel_block_tied_norm",
                              "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
                              "summary_proj_to_labels", "summary_type", "summary_use_proj", "use_flash_attn",
                              "use_xentropy"},
                  .finish = share_activation,
                  .tensors =
                      {
                          {"embeddings.word_embeddings", "embed.token"},
                          {"embeddings.token_type_embeddings", "embed.type"},
                          {"emb_ln", "embed.norm"},
                          {"encoder.layers.{}.attn.Wqkv", {"attention.query", "attention.key", "attention.value"}},
                          {"encoder.layers.{}.attn.out_proj", "attention.output"},
                          {"encoder.layers.{}.norm1", "attention.norm"},
                          {"encoder.layers.{}.mlp.fc11", "mlp.up"},
                          {"encoder.layers.{}.mlp.fc12", "mlp.gate"},
                          {"encoder.layers.{}.mlp.fc2", "mlp.down"},
                          {"encoder.layers.{}.norm2", "mlp.norm"},
                      },
                  // An untied decoder brings its own bias, and nothing reads the other one.
                  .ignored = {"nomic_bert.pooler.*", "cls.predictions.bias", "*.inv_freq"},
              });
  return family;
}

}  // namespace pare
