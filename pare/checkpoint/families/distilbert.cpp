// DistilBERT: BERT without token types and without a pooler; a classifier of sequences has a layer of ReLUs before it.

#include "pare/checkpoint/families/shared/bert_like.h"

namespace pare {

namespace {

Norm norm_of_bert(NormPlace place) {
  Norm norm = layer_norm(place);
  norm.epsilon = 1e-12;
  return norm;
}

Architecture model_of_distilbert() {
  const Norm after = norm_of_bert(NormPlace::post);
  return {.embedding = {.position = Position::learned, .norm = norm_of_bert(NormPlace::pre)},
          .blocks = {{.attention = {.bias = {true, true, true, true}, .mask = Mask::full, .norm = after},
                      .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = after}}}};
}

Heads heads_of_distilbert() {
  const Head language = {.bias = true, .transform = HeadTransform{.norm = norm_of_bert(NormPlace::pre)}};
  const Head classifier = {.bias = true, .transform = HeadTransform{.activation = Activation::relu}};
  return {.classes =
              {
                  {"Model", Task::encoder},
                  {"ForMaskedLM",
                   Task::masked_lm,
                   language,
                   {{"vocab_transform", "head.transform"},
                    {"vocab_layer_norm", "head.transform.norm"},
                    {"vocab_projector", "head"}}},
                  {"ForTokenClassification", Task::token_classifier, {.bias = true}, {{"classifier", "head"}}},
                  {"ForSequenceClassification",
                   Task::classifier,
                   classifier,
                   {{"pre_classifier", "head.transform"}, {"classifier", "head"}}},
                  {"ForQuestionAnswering",
                   Task::question_answering,
                   {.bias = true, .classes = 2},
                   {{"qa_outputs", "head"}}},
              },
          .tied = true};
}

}  // namespace

const Family& family_distilbert() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "distilbert",
      .classes = "DistilBert",
      .base_prefix = "distilbert.",
      .model = model_of_distilbert(),
      .heads = heads_of_distilbert(),
      .keys =
          {
              {"vocab_size", vocab, 30522},
              {{"dim", "hidden_size"}, width, 768},
              {{"n_layers", "num_hidden_layers"}, layers, 6},
              {{"n_heads", "num_attention_heads"}, heads, 12},
              {"hidden_dim", mlp_width, 3072},
              {"activation", activation, "gelu"},
              {"max_position_embeddings", context, 512},
              {"tie_word_embeddings", tied, true},
              {"id2label", labels},
              {"is_decoder", only(false, "an encoder used as a decoder is not supported")},
              {"is_causal", only(false, "an encoder used as a decoder is not supported")},
          },
      // Positions are stored, however they were made.
      .neutral = {"qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_"},
      .finish = share_activation,
      .tensors =
          {
              {"embeddings.word_embeddings", "embed.token"},
              {"embeddings.position_embeddings", "embed.position"},
              {"embeddings.LayerNorm", "embed.norm"},
              {"transformer.layer.{}.attention.q_lin", "attention.query"},
              {"transformer.layer.{}.attention.k_lin", "attention.key"},
              {"transformer.layer.{}.attention.v_lin", "attention.value"},
              {"transformer.layer.{}.attention.out_lin", "attention.output"},
              {"transformer.layer.{}.sa_layer_norm", "attention.norm"},
              {"transformer.layer.{}.ffn.lin1", "mlp.up"},
              {"transformer.layer.{}.ffn.lin2", "mlp.down"},
              {"transformer.layer.{}.output_layer_norm", "mlp.norm"},
          },
      .ignored = {"distilbert.embeddings.position_ids"},
  });
  return family;
}

}  // namespace pare
