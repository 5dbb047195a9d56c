// ALBERT: BERT with a factorised embedding, and a few blocks that many layers share.

#include <fmt/format.h>

#include "pare/checkpoint/families/shared/bert_like.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"

namespace pare {

namespace {

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

std::vector<Binding> bindings_in(const FamilyTable& table, const Architecture& a, const Sharing& sharing) {
  return bind_table(table, a, [&](int64_t block) {
    return fmt::format("{}.albert_layers.{}", block / sharing.inner, block % sharing.inner);
  });
}

const Field groups = {
    [](Config& config, const Key& key, Draft& draft) {
      Sharing sharing = {.layers = draft.layers};
      sharing.groups = config.integer(key.names, 1, 1, sharing.layers);
      sharing.inner = config.integer("inner_group_num", 1, 1, most::layers / sharing.layers);
      // Where nothing is shared, files of other groups have as many tensors, and transformers would not find them.
      const std::string last =
          fmt::format("albert_layer_groups.{}.albert_layers.{}.ffn.weight", sharing.groups - 1, sharing.inner - 1);
      if (sharing.layers == sharing.groups && sharing.groups * sharing.inner > 1 && !config.stores(last, true)) {
        config.problem(fmt::format("num_hidden_groups {} and inner_group_num {} ask for a tensor {}, and there is none",
                                   sharing.groups, sharing.inner, quote(last)));
      }
      draft.layers = sharing.groups * sharing.inner;
      if (sharing.layers != sharing.groups) {
        draft.a.layers = sharing.order();
      }
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      const Sharing sharing = sharings_of(draft.a).front();
      config[key.name()] = sharing.groups;
      config["inner_group_num"] = sharing.inner;
    }};

const Field narrow_embedding =
    field::whole([](const Draft& d) { return token_width(d.a); },
                 [](Draft& d, int64_t width) { d.a.embedding.factor = width; }, 1, most::width);

// Of the second head of pre-training, too.
const Field labels_of_any_head = {[](Config& config, const Key& key, Draft& draft) {
                                    field::labels.read(config, key, draft);
                                    if (draft.a.head.sequence) {
                                      draft.a.head.sequence->classes = config.label_count();
                                    }
                                  },
                                  [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                                    field::labels.write(config, key, draft);
                                    if (draft.a.head.sequence) {
                                      write_labels(config, draft.a.head.sequence->classes);
                                    }
                                  }};

FamilyTable make_table() {
  using namespace field;
  const Field shared_layers = {layers.read, [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                                 config[key.name()] = sharings_of(draft.a).front().layers;
                               }};
  return bert_like(
      {
          .model_type = "albert",
          .classes = "Albert",
          .base_prefix = "albert.",
          .model = {.embedding = {.factor_scope = FactorScope::sum, .factor_bias = true}},
          .keys =
              {
                  {"vocab_size", vocab, 30000},
                  {"hidden_size", width, 4096},
                  {"num_hidden_layers", shared_layers, 12},
                  {"num_attention_heads", heads, 64},
                  {"intermediate_size", mlp_width, 16384},
                  {"hidden_act", activation, "gelu_new"},
                  {"max_position_embeddings", context, 512},
                  {"type_vocab_size", types, 2},
                  {"layer_norm_eps", epsilon, 1e-12},
                  {"tie_word_embeddings", tied, true},
                  {"id2label", labels_of_any_head},
                  {"embedding_size", narrow_embedding, 128},
                  {"num_hidden_groups", groups},
              },
          // Of the first implementation; transformers reads none of them.
          .neutral = {"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"},
          .finish = share_activation,
          .tensors =
              {
                  {"encoder.embedding_hidden_mapping_in", "embed.projection"},
                  {"encoder.albert_layer_groups.{}.attention.query", "attention.query"},
                  {"encoder.albert_layer_groups.{}.attention.key", "attention.key"},
                  {"encoder.albert_layer_groups.{}.attention.value", "attention.value"},
                  {"encoder.albert_layer_groups.{}.attention.dense", "attention.output"},
                  {"encoder.albert_layer_groups.{}.attention.LayerNorm", "attention.norm"},
                  {"encoder.albert_layer_groups.{}.ffn", "mlp.up"},
                  {"encoder.albert_layer_groups.{}.ffn_output", "mlp.down"},
                  {"encoder.albert_layer_groups.{}.full_layer_layer_norm", "mlp.norm"},
              },
          // Pre-training left a pooler and a sentence-order head in many masked-LM files. An untied decoder brings its
          // own bias, and nothing reads the other one.
          .ignored = {"albert.embeddings.position_ids", "albert.embeddings.token_type_ids", "albert.pooler.*",
                      "sop_classifier.*", "predictions.bias"},
      },
      {
          .pooler = "pooler",
          .predictions = "predictions",
          .predictions_dense = "dense",
          .predictions_norm = "LayerNorm",
          .tied_bias = "predictions.bias",
          .sequence_head = "sop_classifier.classifier",
      });
}

Family make_albert() {
  const FamilyTable table = make_table();
  Family family = make_family(table);
  family.bindings = [=](const Architecture& a) { return bindings_in(table, a, sharings_of(a).front()); };
  family.possible_bindings = [=](const Architecture& a) {
    return mapped(sharings_of(a), [&](const Sharing& sharing) { return bindings_in(table, a, sharing); });
  };
  return family;
}

}  // namespace

const Family& family_albert() {
  static const Family family = make_albert();
  return family;
}

}  // namespace pare
