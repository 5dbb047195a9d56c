#include "pare/checkpoint/families/shared/roberta_like.h"

#include <fmt/format.h>

namespace pare {

// Padding reads the row of its own number, and the first token the row after it: the rows before are never read.
const Field padding = {
    [](Config& config, const Key& key, Draft& draft) {
      Architecture& a = draft.a;
      const int64_t rows = a.context, pad = key.whole(config, 0, a.vocab - 1);
      if (config.is_null(key.name())) {
        config.wrong(key.name(), nullptr, "the token that positions leave out");
      }
      a.embedding.position_pad = pad;
      a.embedding.position_offset = pad + 1;
      if (rows <= a.embedding.position_offset) {
        config.problem(
            fmt::format("max_position_embeddings {} leaves no position after the row of pad_token_id {}", rows, pad));
      }
      a.context = rows - a.embedding.position_offset;
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      config[key.name()] = draft.a.embedding.position_pad.value_or(key.fallback.get<int64_t>());
    }};

FamilyTable roberta_like(FamilyTable table, int64_t vocabulary) {
  using namespace field;
  const Field position_rows = {context.read, [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                                 config[key.name()] = draft.a.context + draft.a.embedding.position_offset;
                               }};
  if (table.base_prefix.empty()) {
    table.base_prefix = "roberta.";
  }
  table.keys = {
      {"vocab_size", vocab, vocabulary},
      {"hidden_size", width, 768},
      {"num_hidden_layers", layers, 12},
      {"num_attention_heads", heads, 12},
      {"intermediate_size", mlp_width, 3072},
      {"hidden_act", activation, "gelu"},  // the head's is gelu, whatever this says
      {"max_position_embeddings", position_rows, 512},
      {"type_vocab_size", types, 2},
      {"layer_norm_eps", epsilon, 1e-12},
      {"tie_word_embeddings", tied, true},
      {"id2label", labels},
      {"pad_token_id", padding, 1},
  };
  // The pooler is left over in files of other tasks. An untied decoder brings its own bias, and nothing reads the other
  // one.
  if (table.ignored.empty()) {
    table.ignored = {"roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids", "roberta.pooler.*",
                     "lm_head.bias"};
  }
  table.renamed = {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}};
  return bert_like(std::move(table), {
                                         .pooler = "pooler.dense",
                                         .predictions = "lm_head",
                                         .predictions_dense = "dense",
                                         .predictions_norm = "layer_norm",
                                         .tied_bias = "lm_head.bias",
                                         .classifier = "classifier.out_proj",
                                         .classifier_dense = "classifier.dense",
                                     });
}

}  // namespace pare
