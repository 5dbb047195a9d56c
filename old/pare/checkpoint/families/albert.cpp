// ALBERT: BERT with a factorised embedding, and a few blocks that many layers share.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/families/shared/bert_like.h"
#include "pare/support/text.h"

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

// Every way in which groups could give this order: the fewest blocks in a group first. Only where nothing is shared are
// there several, and then they differ in nothing but names.
std::vector<Sharing> sharings_of(const Architecture& a) {
  const std::vector<int64_t> order = layer_blocks(a);
  const int64_t distinct = std::ssize(a.blocks), runs = std::ssize(order);
  std::vector<Sharing> fitting;
  for (int64_t inner = 1; inner <= distinct; ++inner) {
    const Sharing sharing = {.groups = distinct / inner, .inner = inner, .layers = runs / inner};
    if (distinct % inner == 0 && runs % inner == 0 && sharing.order() == order) {
      fitting.push_back(sharing);
    }
  }
  if (fitting.empty()) {  // family_config() refuses what no groups can give
    fitting.push_back({.groups = distinct, .inner = 1, .layers = runs});
  }
  return fitting;
}

Architecture read_config(Config& config) {
  Architecture a = read_bert_like(config, albert);
  a.embedding.factor = config.integer({"embedding_size"}, 128, 1, most::width);
  a.embedding.factor_scope = FactorScope::sum;
  a.embedding.factor_bias = true;

  Sharing sharing = {.layers = std::ssize(a.blocks)};
  sharing.groups = config.integer({"num_hidden_groups"}, 1, 1, sharing.layers);
  sharing.inner = config.integer({"inner_group_num"}, 1, 1, most::layers / sharing.layers);
  // Where nothing is shared, files of other groups have as many tensors, and transformers would not find them.
  const std::string last =
      fmt::format("albert_layer_groups.{}.albert_layers.{}.ffn.weight", sharing.groups - 1, sharing.inner - 1);
  if (sharing.layers == sharing.groups && sharing.groups * sharing.inner > 1 && !config.stores(last, true)) {
    config.problem(fmt::format("num_hidden_groups {} and inner_group_num {} ask for a tensor {}, and there is none",
                               sharing.groups, sharing.inner, quote(last)));
  }
  const Block block = a.blocks.front();
  a.blocks.assign(static_cast<size_t>(sharing.groups * sharing.inner), block);
  if (sharing.layers != sharing.groups) {
    a.layers = sharing.order();
  }
  // Of the first implementation; transformers reads none of them.
  config.neutral({"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const Sharing sharing = sharings_of(a).front();
  nlohmann::ordered_json config = write_bert_like(a, albert);
  config["embedding_size"] = token_width(a);
  config["num_hidden_layers"] = sharing.layers;
  config["num_hidden_groups"] = sharing.groups;
  config["inner_group_num"] = sharing.inner;
  return config;
}

std::vector<Binding> bindings_in(const Architecture& a, const Sharing& sharing) {
  Binder binder(a);
  bind_bert_embeddings(binder, albert);
  binder.module("albert.encoder.embedding_hidden_mapping_in", {"embed.projection"});
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

std::vector<Binding> bindings(const Architecture& a) {
  return bindings_in(a, sharings_of(a).front());
}

std::vector<std::vector<Binding>> possible_bindings(const Architecture& a) {
  std::vector<std::vector<Binding>> sets;
  for (const Sharing& sharing : sharings_of(a)) {
    sets.push_back(bindings_in(a, sharing));
  }
  return sets;
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
      .possible_bindings = possible_bindings,
      // Pre-training left a pooler and a sentence-order head in many masked-LM files. An untied decoder brings its own
      // bias, and nothing reads the other one.
      .ignored = {"albert.embeddings.position_ids", "albert.embeddings.token_type_ids", "albert.pooler.*",
                  "sop_classifier.*", "predictions.bias"},
  };
  return family;
}

}  // namespace pare
