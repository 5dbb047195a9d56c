#include "pare/checkpoint/families/shared/decoder_heads.h"

#include "pare/checkpoint/fields.h"

namespace pare {

namespace {

const Field tied_language = {
    [](Config& config, const Key& key, Draft& draft) {
      const bool tied = config.flag(key.name(), key.fallback.get<bool>());
      draft.a.head.tied = tied && draft.a.task == Task::causal_lm;
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = draft.a.head.tied; }};

// The generic classes of transformers have one module for both kinds of classes, with a bias for tokens alone, and that
// only if a key does not forbid it.
const Field token_bias = {[](Config& config, const Key& key, Draft& draft) {
                            if (draft.a.task == Task::token_classifier) {
                              draft.a.head.bias = config.flag(key.name(), true);
                            }
                          },
                          [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                            if (draft.a.task == Task::token_classifier && !draft.a.head.bias) {
                              config[key.name()] = false;
                            }
                          }};
const Field no_effect = {[](Config&, const Key&, Draft&) {}};

std::vector<TensorRow> matrix_in(std::string_view module) {
  return {{std::string(module), "head"}};
}

}  // namespace

Heads decoder_heads(const DecoderHeads& heads) {
  std::vector<ClassRow> classes = {
      {heads.language_class, Task::causal_lm, {.bias = heads.language_bias}, matrix_in(heads.language_model)}};
  if (heads.sequences) {
    classes.push_back({"ForSequenceClassification", Task::classifier, {.pool = Pool::last}, matrix_in("score")});
  }
  if (!heads.tokens.empty()) {
    classes.push_back({"ForTokenClassification", Task::token_classifier, {.bias = true}, matrix_in(heads.tokens)});
  }
  if (!heads.answers.empty()) {
    classes.push_back(
        {"ForQuestionAnswering", Task::question_answering, {.bias = true, .classes = 2}, matrix_in(heads.answers)});
  }
  classes.push_back({"Model"});
  return {.classes = std::move(classes),
          .tied = heads.tied,
          .keys = {{"tie_word_embeddings", tied_language, heads.tied},
                   {"id2label", field::labels},
                   {"token_classification_bias", heads.tokens == "score" ? token_bias : no_effect}}};
}

}  // namespace pare
