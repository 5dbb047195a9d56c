#include "pare/checkpoint/families/shared/bert_like.h"

#include <fmt/format.h>

namespace pare {

namespace {

const char* const pre_training = "ForPreTraining";

// The last whose tensors are in a file is the class of a file that names none.
std::vector<ModelClass> classes_of(const FamilyTable& table, const BertHeads& heads) {
  std::vector<ModelClass> classes;
  const auto add = [&](const char* ending, Task task, std::vector<std::string> tensors) {
    classes.push_back({fmt::format("{}{}", table.classes, ending), task, std::move(tensors)});
  };
  const auto weight_of = [](std::string_view module) { return fmt::format("{}.weight", module); };
  const std::string predictions = fmt::format("{}.{}.weight", heads.predictions, heads.predictions_dense);
  const std::string pooler = fmt::format("*{}.weight", heads.pooler);
  add("Model", Task::encoder, {});
  add("ForMaskedLM", Task::masked_lm, {predictions});
  if (heads.next_sentence) {
    add("ForNextSentencePrediction", Task::next_sentence, {weight_of(heads.sequence_head), pooler});
  }
  if (!heads.sequence_head.empty()) {
    add(pre_training, Task::masked_lm, {predictions, weight_of(heads.sequence_head), pooler});
  }
  add("ForTokenClassification", Task::token_classifier, {"classifier.weight"});
  std::vector<std::string> classifier = {weight_of(heads.classifier)};
  if (heads.classifier_dense.empty()) {
    classifier.push_back(pooler);
  }
  add("ForSequenceClassification", Task::classifier, std::move(classifier));
  add("ForQuestionAnswering", Task::question_answering, {"qa_outputs.weight"});
  return classes;
}

void read_head(const FamilyTable& table, Config& config, Architecture& a, const BertHeads& heads) {
  const ModelClass read_as = config.model_class(classes_of(table, heads));
  a.task = read_as.task;
  a.head.bias = a.task != Task::encoder;
  const HeadTransform pooler = {.activation = Activation::tanh};
  if (a.task == Task::masked_lm) {
    a.head.transform = HeadTransform{.norm = layer_norm()};
    if (read_as.name.ends_with(pre_training)) {
      a.head.sequence = SequenceHead{.classes = 2, .bias = true, .transform = pooler};
    }
  } else if (a.task == Task::question_answering || a.task == Task::next_sentence) {
    a.head.classes = 2;
  }
  const bool pooled = a.task == Task::classifier || a.task == Task::next_sentence;
  const bool stored = a.task == Task::encoder && config.stores(fmt::format("{}.weight", heads.pooler), true);
  if (pooled || stored) {
    a.head.transform = pooler;
  }
}

void write_class(const FamilyTable& table, nlohmann::ordered_json& config, const Architecture& a,
                 const BertHeads& heads) {
  for (const ModelClass& one : classes_of(table, heads)) {
    if (one.task == a.task && one.name.ends_with(pre_training) == a.head.sequence.has_value()) {
      config["architectures"] = {one.name};
    }
  }
}

// The head has a `decoder`, and a bias of its own that a tied decoder shares and an untied one leaves unread.
void bind_predictions(Binder& binder, const Architecture& a, const BertHeads& heads) {
  const std::string head = fmt::format("{}.", heads.predictions);
  binder.module(head + std::string(heads.predictions_dense), {"head.transform"});
  binder.module(head + std::string(heads.predictions_norm), {"head.transform.norm"});
  if (a.head.tied) {
    binder.tensor(head + "bias", "head.bias");
    binder.copy(head + "decoder.bias", "head.bias");
    binder.copy(head + "decoder.weight", "embed.token.weight");
  } else {
    binder.module(head + "decoder", {"head"});
  }
}

void bind_head(const FamilyTable& table, Binder& binder, const Architecture& a, const BertHeads& heads) {
  const std::string pooler = fmt::format("{}{}", table.base_prefix, heads.pooler);
  const bool own_dense = a.task == Task::classifier && !heads.classifier_dense.empty();
  if (a.task == Task::masked_lm) {
    bind_predictions(binder, a, heads);
    binder.module(pooler, {"head.sequence.transform"});
    binder.module(std::string(heads.sequence_head), {"head.sequence"});
    return;
  }
  binder.module(own_dense ? std::string(heads.classifier_dense) : pooler, {"head.transform"});
  binder.module(std::string(a.task == Task::classifier         ? heads.classifier
                            : a.task == Task::token_classifier ? "classifier"
                            : a.task == Task::next_sentence    ? heads.sequence_head
                                                               : "qa_outputs"),
                {"head"});
}

}  // namespace

FamilyTable bert_like(FamilyTable table, const BertHeads& heads) {
  const Norm after = layer_norm(NormPlace::post);
  table.model.embedding.position = Position::learned;
  table.model.embedding.norm = layer_norm();
  table.model.blocks = {{.attention = {.bias = {true, true, true, true}, .mask = Mask::full, .norm = after},
                         .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = after}}};
  table.heads = {
      .read = [=](const FamilyTable& t, Config& config, Draft& draft) { read_head(t, config, draft.a, heads); },
      .write = [=](const FamilyTable& t, nlohmann::ordered_json& config,
                   const Architecture& a) { write_class(t, config, a, heads); },
      .bind = [=](const FamilyTable& t, Binder& binder, const Architecture& a) { bind_head(t, binder, a, heads); }};
  table.keys.insert(
      table.keys.end(),
      {{"position_embedding_type", field::only("absolute", "relative positions are not supported")},
       {"is_decoder", field::only(false, "an encoder used as a decoder is not supported")},
       {"is_causal", field::only(false, "transformers then looks back only in batches without padding")}});
  const std::vector<TensorRow> embeddings = {
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
