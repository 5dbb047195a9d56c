#include "pare/checkpoint/families/shared/decoder_heads.h"

#include <fmt/format.h>

namespace pare {

namespace {

// As the generic classes of transformers have it: one module for both kinds of classes, with a bias for tokens alone,
// and that only if a key does not forbid it.
bool shares_score(const DecoderHeads& heads) {
  return heads.tokens == "score";
}

std::vector<ModelClass> classes_of(const FamilyTable& table, const DecoderHeads& heads, bool tied) {
  std::vector<ModelClass> classes;
  const auto add = [&](std::string_view ending, Task task, std::vector<std::string> tensors) {
    classes.push_back({fmt::format("{}{}", table.classes, ending), task, std::move(tensors)});
  };
  const auto weight_of = [](std::string_view module) { return fmt::format("{}.weight", module); };
  // A tied head need not be stored; but only a file of a class with a head has the prefix.
  add(heads.language_class, Task::causal_lm,
      {tied ? fmt::format("{}*", table.base_prefix) : weight_of(heads.language_model)});
  add("ForSequenceClassification", Task::classifier, {"score.weight"});
  if (!heads.tokens.empty()) {
    add("ForTokenClassification", Task::token_classifier, {weight_of(heads.tokens)});
    if (shares_score(heads)) {
      classes.back().tensors.push_back("score.bias");
    }
  }
  if (!heads.answers.empty()) {
    add("ForQuestionAnswering", Task::question_answering, {weight_of(heads.answers)});
  }
  add("Model", Task::encoder, {});
  return classes;
}

void read_head(const FamilyTable& table, Config& config, Architecture& a, const DecoderHeads& heads) {
  const bool tied = config.flag("tie_word_embeddings", heads.tied);
  a.task = config.model_class(classes_of(table, heads, tied)).task;
  if (a.task == Task::causal_lm) {
    a.head.tied = tied;
    a.head.bias = heads.language_bias;
  } else if (a.task == Task::classifier) {
    a.head.classes = config.label_count();
    a.head.pool = Pool::last;
  } else if (a.task == Task::token_classifier) {
    a.head.classes = config.label_count();
    a.head.bias = !shares_score(heads) || config.flag("token_classification_bias", true);
  } else if (a.task == Task::question_answering) {
    a.head.classes = 2;
    a.head.bias = true;
  }
  config.neutral({"token_classification_bias"});
}

void write_head(const FamilyTable& table, nlohmann::ordered_json& config, const Architecture& a,
                const DecoderHeads& heads) {
  for (const ModelClass& one : classes_of(table, heads, a.head.tied)) {
    if (one.task == a.task) {
      config["architectures"] = {one.name};
    }
  }
  config["tie_word_embeddings"] = a.head.tied;
  if (a.task == Task::classifier || a.task == Task::token_classifier) {
    write_labels(config, a.head.classes.value_or(0));
  }
  if (a.task == Task::token_classifier && !a.head.bias) {
    config["token_classification_bias"] = false;
  }
}

// A tied head may be in the file a second time.
void bind_head(Binder& binder, const Architecture& a, const DecoderHeads& heads) {
  const std::string module(a.task == Task::classifier           ? "score"
                           : a.task == Task::token_classifier   ? heads.tokens
                           : a.task == Task::question_answering ? heads.answers
                                                                : heads.language_model);
  binder.module(module, {"head"});
  if (a.head.tied) {
    binder.copy(module + ".weight", "embed.token.weight");
  }
}

}  // namespace

Heads decoder_heads(const DecoderHeads& heads) {
  return {
      .read = [=](const FamilyTable& table, Config& config, Draft& draft) { read_head(table, config, draft.a, heads); },
      .write = [=](const FamilyTable& table, nlohmann::ordered_json& config,
                   const Architecture& a) { write_head(table, config, a, heads); },
      .bind = [=](const FamilyTable&, Binder& binder, const Architecture& a) { bind_head(binder, a, heads); }};
}

}  // namespace pare
