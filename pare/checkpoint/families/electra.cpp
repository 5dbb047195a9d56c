// ELECTRA: BERT with a narrower embedding, without a pooler, and with heads of its own.

#include "pare/checkpoint/families/shared/bert_like.h"

namespace pare {

namespace {

Heads heads_of_electra() {
  // Always GELU, whatever the activation of the MLPs is.
  const Head language = {.bias = true, .transform = HeadTransform{.norm = layer_norm()}};
  const Head classifier = {.bias = true, .transform = HeadTransform{}};
  return {.classes =
              {
                  {"Model", Task::encoder},
                  {"ForMaskedLM",
                   Task::masked_lm,
                   language,
                   {{"generator_predictions.dense", "head.transform"},
                    {"generator_predictions.LayerNorm", "head.transform.norm"},
                    {"generator_lm_head", "head"}}},
                  {"ForTokenClassification", Task::token_classifier, {.bias = true}, {{"classifier", "head"}}},
                  {"ForSequenceClassification",
                   Task::classifier,
                   classifier,
                   {{"classifier.dense", "head.transform"}, {"classifier.out_proj", "head"}}},
                  {"ForQuestionAnswering",
                   Task::question_answering,
                   {.bias = true, .classes = 2},
                   {{"qa_outputs", "head"}}},
              },
          .tied = true};
}

// Between the two widths lies a projection; where they are one, there is none.
const Field embedding_width = {
    [](Config& config, const Key& key, Draft& draft) {
      Embedding& embedding = draft.a.embedding;
      const int64_t narrow = key.whole(config, 1, most::width);
      if (narrow != draft.a.width) {
        embedding.factor = narrow;
        embedding.factor_scope = FactorScope::sum;
        embedding.factor_bias = true;
      }
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = token_width(draft.a); }};

FamilyTable make_table() {
  using namespace field;
  FamilyTable table = bert_like(
      {
          .model_type = "electra",
          .classes = "Electra",
          .base_prefix = "electra.",
          .keys =
              {
                  {"vocab_size", vocab, 30522},
                  {"hidden_size", width, 256},
                  {"embedding_size", embedding_width, 128},
                  {"num_hidden_layers", layers, 12},
                  {"num_attention_heads", heads, 4},
                  {"intermediate_size", mlp_width, 1024},
                  {"hidden_act", activation, "gelu"},
                  {"max_position_embeddings", context, 512},
                  {"type_vocab_size", types, 2},
                  {"layer_norm_eps", epsilon, 1e-12},
                  {"tie_word_embeddings", tied, true},
                  {"id2label", labels},
              },
          // Of the head for multiple choice.
          .neutral = {"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"},
          // Pre-training left the head that finds replaced tokens in many files.
          .ignored = {"electra.embeddings.position_ids", "electra.embeddings.token_type_ids",
                      "discriminator_predictions.*"},
          .renamed = {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}},
      },
      {});
  table.heads = heads_of_electra();
  table.tensors.push_back({"embeddings_project", "embed.projection"});
  return table;
}

}  // namespace

const Family& family_electra() {
  static const Family family = make_family(make_table());
  return family;
}

}  // namespace pare
