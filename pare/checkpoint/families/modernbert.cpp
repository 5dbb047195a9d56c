// ModernBERT: rotary positions, layers with a window between those without, gated MLPs, queries, keys and values in one
// matrix.

#include "pare/checkpoint/families/shared/modernbert_like.h"

namespace pare {

namespace {

Heads heads_of_modernbert() {
  const std::vector<TensorRow> predictions = modernbert_head("head", "decoder"),
                               classifier = modernbert_head("head", "classifier");
  const HeadTransform transform = modernbert_transform();
  // The last three have the same tensors.
  return {
      .classes =
          {
              {"Model", Task::encoder},
              {"ForMaskedLM", Task::masked_lm, {.transform = transform}, predictions},
              {"ForQuestionAnswering",
               Task::question_answering,
               {.bias = true, .classes = 2, .transform = transform},
               classifier},
              {"ForTokenClassification", Task::token_classifier, {.bias = true, .transform = transform}, classifier},
              {"ForSequenceClassification", Task::classifier, {.bias = true, .transform = transform}, classifier},
          },
      .tied = true};
}

const Field decoder_bias = {[](Config& config, const Key& key, Draft& draft) {
                              const bool value = config.flag(key.name(), key.fallback.get<bool>());
                              if (draft.a.task == Task::masked_lm) {
                                draft.a.head.bias = value;
                              }
                            },
                            [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                              if (draft.a.task == Task::masked_lm) {
                                config[key.name()] = draft.a.head.bias;
                              }
                            }};

// Of the layer before any head.
const Field head_layer_bias = {[](Config& config, const Key& key, Draft& draft) {
                                 const bool value = config.flag(key.name(), key.fallback.get<bool>());
                                 if (draft.a.head.transform) {
                                   draft.a.head.transform->bias = value;
                                 }
                               },
                               [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                                 if (draft.a.head.transform) {
                                   config[key.name()] = draft.a.head.transform->bias;
                                 }
                               }};

const Field pooling = {[](Config& config, const Key& key, Draft& draft) {
                         const std::string found = config.text(key.name(), key.fallback.get<std::string>());
                         if (found != "cls" && found != "mean") {
                           config.wrong(key.name(), found, "cls or mean");
                         }
                         if (draft.a.task == Task::classifier && found == "mean") {
                           draft.a.head.pool = Pool::mean;
                         }
                       },
                       [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                         if (draft.a.task == Task::classifier) {
                           config[key.name()] = draft.a.head.pool == Pool::mean ? "mean" : "cls";
                         }
                       }};

}  // namespace

const Family& family_modernbert() {
  using namespace field;
  static const Family family = make_family(modernbert_like(
      {
          .model_type = "modernbert",
          .classes = "ModernBert",
          .heads = heads_of_modernbert(),
          .keys =
              {
                  {"decoder_bias", decoder_bias, true},
                  {"classifier_bias", head_layer_bias, false},
                  {"classifier_pooling", pooling, "cls"},
                  {"tie_word_embeddings", tied, true},
                  {"id2label", labels},
                  {"is_decoder", only(false, "an encoder used as a decoder is not supported")},
                  {"is_causal", only(false, "ModernBERT looks both ways")},
              },
          .tensors =
              {
                  {"layers.{}.attn.Wqkv", {"attention.query", "attention.key", "attention.value"}},
              },
      },
      {.mask = Mask::full, .itself = 1}));
  return family;
}

}  // namespace pare
