#include "pare/checkpoint/families/shared/bert_like.h"

#include <fmt/format.h>

namespace pare {

static Heads heads_of(const FamilyTable& table, const BertHeads& heads) {
  const auto module = [](std::string_view name) { return std::string(name); };
  const HeadTransform pool = {.activation = Activation::tanh};
  const std::string pooler = fmt::format("{}{}", table.base_prefix, heads.pooler);
  const Head language = {.bias = true, .transform = HeadTransform{.norm = layer_norm()}};
  const std::vector<TensorRow> predictions = {
      {fmt::format("{}.{}", heads.predictions, heads.predictions_dense), "head.transform"},
      {fmt::format("{}.{}", heads.predictions, heads.predictions_norm), "head.transform.norm"},
      {fmt::format("{}.decoder", heads.predictions), "head"},
  };
  std::vector<ClassRow> classes = {
      {"Model", Task::encoder, {.transform = pool}, {{pooler, "head.transform"}}},
      {"ForMaskedLM", Task::masked_lm, language, predictions},
  };
  if (heads.next_sentence) {
    classes.push_back({"ForNextSentencePrediction",
                       Task::next_sentence,
                       {.bias = true, .classes = 2, .transform = pool},
                       {{pooler, "head.transform"}, {module(heads.sequence_head), "head"}}});
  }
  if (!heads.sequence_head.empty()) {
    ClassRow& row = classes.emplace_back(ClassRow{"ForPreTraining", Task::masked_lm, language, predictions});
    row.head.sequence = SequenceHead{.classes = 2, .bias = true, .transform = pool};
    row.tensors.push_back({pooler, "head.sequence.transform"});
    row.tensors.push_back({module(heads.sequence_head), "head.sequence"});
  }
  const std::string dense = heads.classifier_dense.empty() ? pooler : module(heads.classifier_dense);
  classes.push_back({"ForTokenClassification", Task::token_classifier, {.bias = true}, {{"classifier", "head"}}});
  classes.push_back({"ForSequenceClassification",
                     Task::classifier,
                     {.bias = true, .transform = pool},
                     {{dense, "head.transform"}, {module(heads.classifier), "head"}}});
  classes.push_back(
      {"ForQuestionAnswering", Task::question_answering, {.bias = true, .classes = 2}, {{"qa_outputs", "head"}}});
  return {.classes = std::move(classes), .tied = true, .tied_bias = heads.tied_bias};
}

FamilyTable bert_like(FamilyTable table, const BertHeads& heads) {
  const Norm after = layer_norm(NormPlace::post);
  table.model.embedding.position = Position::learned;
  table.model.embedding.norm = layer_norm();
  table.model.blocks = {{.attention = {.bias = {true, true, true, true}, .mask = Mask::full, .norm = after},
                         .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = after}}};
  table.heads = heads_of(table, heads);
  table.keys.insert(
      table.keys.end(),
      {{"position_embedding_type", field::only("absolute", "relative positions are not supported")},
       {"is_decoder", field::only(false, "an encoder used as a decoder is not supported")},
       {"is_causal", field::only(false, "transformers then looks back only in batches without padding")}});
  std::vector<TensorRow> embeddings = {
      {"embeddings.word_embeddings", "embed.token"},
      {"embeddings.position_embeddings", "embed.position"},
      {"embeddings.token_type_embeddings", "embed.type"},
      {"embeddings.LayerNorm", "embed.norm"},
  };
  if (table.tensors.empty()) {
    table.tensors = {
        {"encoder.layer.{}.attention.self.query", "attention.query"},
        {"encoder.layer.{}.attention.self.key", "attention.key"},
        {"encoder.layer.{}.attention.self.value", "attention.value"},
        {"encoder.layer.{}.attention.output.dense", "attention.output"},
        {"encoder.layer.{}.attention.output.LayerNorm", "attention.norm"},
        {"encoder.layer.{}.intermediate.dense", "mlp.up"},
        {"encoder.layer.{}.output.dense", "mlp.down"},
        {"encoder.layer.{}.output.LayerNorm", "mlp.norm"},
    };
  }
  table.tensors.insert(table.tensors.begin(), embeddings.begin(), embeddings.end());
  return table;
}

void share_activation(Config&, Draft& draft) {
  if (draft.a.task == Task::masked_lm) {
    draft.a.head.transform->activation = draft.mlp.activation;
  }
}

}  // namespace pare
