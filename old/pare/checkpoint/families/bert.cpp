// BERT: learned positions and token types, LayerNorm after each sublayer, full attention, pre-trained on masked tokens
// and on whether one sentence follows another.

#include <nlohmann/json.hpp>

#include "pare/checkpoint/families/shared/bert_like.h"

namespace pare {

namespace {

constexpr BertLike bert = {.name = "bert",
                           .classes = "Bert",
                           .pooler = "pooler.dense",
                           .predictions = "cls.predictions",
                           .predictions_dense = "transform.dense",
                           .predictions_norm = "transform.LayerNorm",
                           .sequence_head = "cls.seq_relationship",
                           .next_sentence = true,
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
  bind_bert_head(binder, a, bert);
  return binder.take();
}

}  // namespace

const Family& family_bert() {
  static const Family family = {
      .model_type = bert.name,
      .base_prefix = "bert.",
      .bare_class = "BertModel",
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
