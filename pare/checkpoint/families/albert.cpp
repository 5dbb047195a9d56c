// ALBERT: BERT with a factorised embedding, and a few blocks that many layers share.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "pare/checkpoint/families/shared/bert_like.h"

namespace pare {

namespace {

constexpr BertLike albert = {.name = "albert",
                             .classes = "Albert",
                             .pooler = "pooler",
                             .predictions = "predictions",
                             .predictions_dense = "dense",
                             .predictions_norm = "LayerNorm",
                             .sequence_head = "sop_classifier.classifier",
                             .vocab = 30000,
                             .width = 4096,
                             .heads = 64,
                             .mlp_width = 16384,
                             .activation = "gelu_new"};

// A layer runs all blocks of one group in turn, and neighbouring layers run the same group.
struct Sharing {
  int64_t groups = 1, inner = 1, layers = 1;

  std::vector<int64_t> order() const {
    std::vector<int64_t> blocks;
    const double layers_per_group = static_cast<double>(layers) / static_cast<double>(groups);
    for (int64_t layer = 0; layer < layers; ++layer) {
      const int64_t group = static_cast<int64_t>(static_cast<double>(layer) / layers_per_group);
      for (int64_t i = 0; i < inner; ++i) {
        blocks.push_back(group * inner + i);
      }
    }
    return blocks;
  }
};

// read_config() makes one entry of `blocks` per group. Where they were folded since, the order tells the groups, unless
// nothing is shared; then one group of all is as good as any. What no groups can give, family_config() refuses.
Sharing sharing_of(const Architecture& a) {
  const std::vector<int64_t> order = layer_blocks(a);
  const int64_t distinct = static_cast<int64_t>(expanded_blocks(a).size());
  const int64_t runs = static_cast<int64_t>(order.size());
  std::vector<int64_t> inner_counts(static_cast<size_t>(distinct) + 1);
  std::iota(inner_counts.begin(), inner_counts.end(), 0);
  inner_counts[0] = a.blocks.front().repeat;
  for (int64_t inner : inner_counts) {
    const Sharing sharing = {.groups = distinct / inner, .inner = inner, .layers = runs / inner};
    if (distinct % inner == 0 && runs % inner == 0 && sharing.order() == order) {
      return sharing;
    }
  }
  return {.groups = distinct, .inner = 1, .layers = runs};
}

Architecture read_config(Config& config) {
  Architecture a = read_bert_like(config, albert);
  a.embedding.factor = config.integer({"embedding_size"}, 128, 1, most::width);
  a.embedding.factor_scope = FactorScope::sum;
  a.embedding.factor_bias = true;

  Block block = a.blocks.front();
  Sharing sharing = {.layers = block.repeat};
  sharing.groups = config.integer({"num_hidden_groups"}, 1, 1, sharing.layers);
  sharing.inner = config.integer({"inner_group_num"}, 1, 1, most::layers / sharing.layers);
  block.repeat = sharing.inner;
  a.blocks.assign(static_cast<size_t>(sharing.groups), block);
  if (sharing.layers != sharing.groups) {
    a.layers = sharing.order();
  }
  // Of the first implementation; transformers reads none of them.
  config.neutral({"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const Sharing sharing = sharing_of(a);
  nlohmann::ordered_json config = write_bert_like(a, albert);
  config["embedding_size"] = token_width(a);
  config["num_hidden_layers"] = sharing.layers;
  config["num_hidden_groups"] = sharing.groups;
  config["inner_group_num"] = sharing.inner;
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  bind_bert_embeddings(binder, albert);
  binder.module("albert.encoder.embedding_hidden_mapping_in", {"embed.projection"});
  const Sharing sharing = sharing_of(a);
  for (int64_t n = 0; n < sharing.groups * sharing.inner; ++n) {
    const std::string theirs =
        fmt::format("albert.encoder.albert_layer_groups.{}.albert_layers.{}.", n / sharing.inner, n % sharing.inner);
    const std::string attention = fmt::format("blocks.{}.attention.", n), mlp = fmt::format("blocks.{}.mlp.", n);
    binder.module(theirs + "attention.query", {attention + "query"});
    binder.module(theirs + "attention.key", {attention + "key"});
    binder.module(theirs + "attention.value", {attention + "value"});
    binder.module(theirs + "attention.dense", {attention + "output"});
    binder.module(theirs + "attention.LayerNorm", {attention + "norm"});
    binder.module(theirs + "ffn", {mlp + "up"});
    binder.module(theirs + "ffn_output", {mlp + "down"});
    binder.module(theirs + "full_layer_layer_norm", {mlp + "norm"});
  }
  bind_bert_head(binder, a, albert);
  return binder.take();
}

}  // namespace

const Family& family_albert() {
  static const Family family = {
      .model_type = albert.name,
      .base_prefix = "albert.",
      .bare_class = "AlbertModel",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      // Pre-training left a pooler and a sentence-order head in many masked-LM files. An untied decoder brings its own
      // bias, and nothing reads the other one.
      .ignored = {"albert.embeddings.position_ids", "albert.embeddings.token_type_ids", "albert.pooler.*",
                  "sop_classifier.*", "predictions.bias"},
  };
  return family;
}

}  // namespace pare
