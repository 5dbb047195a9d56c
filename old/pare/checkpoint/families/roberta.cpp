// RoBERTa: BERT with positions that leave out the padding token, and heads of other names.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/families/shared/bert_like.h"

namespace pare {

namespace {

constexpr BertLike roberta = {.name = "roberta",
                              .classes = "Roberta",
                              .pooler = "pooler.dense",
                              .predictions = "lm_head",
                              .predictions_dense = "dense",
                              .predictions_norm = "layer_norm",
                              .classifier = "classifier.out_proj",
                              .classifier_dense = "classifier.dense",
                              .vocab = 50265,
                              .width = 768,
                              .heads = 12,
                              .mlp_width = 3072,
                              .activation = "gelu"};

Architecture read_config(Config& config) {
  Architecture a = read_bert_like(config, roberta);
  // Padding reads the row of its own number, and the first token the row after it: the rows before are never read.
  const int64_t rows = a.context, pad = config.integer({"pad_token_id"}, 1, 0, a.vocab - 1);
  if (config.is_null("pad_token_id")) {
    config.wrong("pad_token_id", nullptr, "the token that positions leave out");
  }
  a.embedding.position_pad = pad;
  a.embedding.position_offset = pad + 1;
  if (rows <= a.embedding.position_offset) {
    config.problem(
        fmt::format("max_position_embeddings {} leaves no position after the row of pad_token_id {}", rows, pad));
  }
  a.context = rows - a.embedding.position_offset;
  if (a.task == Task::masked_lm) {
    a.head.transform->activation = Activation::gelu;  // whatever hidden_act says
  }
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  nlohmann::ordered_json config = write_bert_like(a, roberta);
  config["max_position_embeddings"] = a.context + a.embedding.position_offset;
  config["pad_token_id"] = a.embedding.position_pad.value_or(1);
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  bind_bert_embeddings(binder, roberta);
  bind_bert_layers(binder, a, roberta);
  bind_bert_head(binder, a, roberta);
  return binder.take();
}

}  // namespace

const Family& family_roberta() {
  static const Family family = {
      .model_type = roberta.name,
      .base_prefix = "roberta.",
      .bare_class = "RobertaModel",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      // The pooler is left over in files of other tasks. An untied decoder brings its own bias, and nothing reads the
      // other one.
      .ignored = {"roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids", "roberta.pooler.*",
                  "lm_head.bias"},
      .renamed = {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}},
  };
  return family;
}

}  // namespace pare
