// BERT: learned positions and token types, LayerNorm after each sublayer, full attention, pooler or masked-LM head.

#include <nlohmann/json.hpp>

#include "pare/checkpoint/bert_like.h"

namespace pare {

namespace {

constexpr BertLike bert = {.name = "bert",
                           .classes = "Bert",
                           .pooler = "pooler.dense",
                           .vocab = 30522,
                           .width = 768,
                           .heads = 12,
                           .mlp_width = 3072,
                           .activation = "gelu"};

Architecture read_config(Config& config) {
  config.neutral(
      {"pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"});
  return read_bert_like(config, bert);
}

nlohmann::ordered_json write_config(const Architecture& a) {
  return write_bert_like(a, bert);
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  bind_bert_embeddings(binder, bert);
  bind_bert_layers(binder, a, bert);
  if (a.task == Task::masked_lm) {
    const std::string head = "cls.predictions";
    bind_predictions(binder, a, head, head + ".transform.dense", head + ".transform.LayerNorm");
  } else {
    binder.module("bert.pooler.dense", {"head.transform"});
    binder.module("classifier", {"head"});
  }
  return binder.take();
}

}  // namespace

const Family& family_bert() {
  static const Family family = {
      .model_type = bert.name,
      .base_prefix = "bert.",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      // Pre-training left a pooler and a next-sentence head in many masked-LM files. An untied decoder brings its own
      // bias, and nothing reads the other one.
      .ignored = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids", "bert.pooler.*",
                  "cls.seq_relationship.*", "cls.predictions.bias"},
      .renamed = {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}},
  };
  return family;
}

}  // namespace pare
