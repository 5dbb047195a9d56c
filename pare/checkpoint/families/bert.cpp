// BERT: learned positions and token types, LayerNorm after each sublayer, full attention, pooler or masked-LM head.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/family.h"

namespace pare {

namespace {

Architecture read_config(Config& config) {
  Architecture a;
  a.name = "bert";
  a.task = config.task({{"BertModel", Task::encoder},
                        {"BertForMaskedLM", Task::masked_lm},
                        {"BertForSequenceClassification", Task::classifier}});
  a.width = config.integer({"hidden_size"}, 768, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, 30522, 1, most::rows);
  a.context = config.integer({"max_position_embeddings"}, 512, 1, most::rows);
  const double epsilon = config.epsilon("layer_norm_eps", 1e-12);
  a.embedding.position = Position::learned;
  a.embedding.types = config.integer({"type_vocab_size"}, 2, 1, most::rows);
  a.embedding.norm = layer_norm(epsilon);

  Block& block = a.blocks.emplace_back();
  block.repeat = config.integer({"num_hidden_layers"}, 12, 1, most::layers);
  Attention& attention = block.attention;
  attention.heads = attention.kv_heads = config.integer({"num_attention_heads"}, 12, 1, most::heads);
  if (a.width % attention.heads != 0) {
    config.problem(fmt::format("num_attention_heads {} does not divide hidden_size {}", attention.heads, a.width));
  }
  attention.head_width = a.width / attention.heads;
  attention.bias = {true, true, true, true};
  attention.mask = Mask::full;
  attention.norm = layer_norm(epsilon, NormPlace::post);
  Mlp& mlp = block.mlp.emplace();
  mlp.width = config.integer({"intermediate_size"}, 3072, 1, 4 * most::width);
  mlp.activation = config.activation("hidden_act", "gelu");
  mlp.bias = {.up = true, .down = true};
  mlp.norm = layer_norm(epsilon, NormPlace::post);

  const HeadTransform pooler = {.activation = Activation::tanh};
  if (a.task == Task::masked_lm) {
    a.head.tied = config.flag("tie_word_embeddings", true);
    a.head.bias = true;
    a.head.transform = HeadTransform{.activation = mlp.activation, .norm = layer_norm(epsilon)};
  } else if (a.task == Task::classifier) {
    a.head.classes = config.label_count();
    a.head.bias = true;
    a.head.transform = pooler;
  } else if (config.stores("pooler.dense.weight", true)) {
    a.head.transform = pooler;
  }

  config.only("position_embedding_type", "absolute", "relative positions are not supported");
  config.only("is_decoder", false, "BERT as a decoder is not supported");
  config.neutral({"is_causal", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
                  "pooler_size_per_head", "pooler_type"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const std::vector<Block> blocks = expanded_blocks(a);
  const Mlp mlp = blocks.front().mlp.value_or(Mlp{});
  const char* name = a.task == Task::masked_lm    ? "BertForMaskedLM"
                     : a.task == Task::classifier ? "BertForSequenceClassification"
                                                  : "BertModel";
  nlohmann::ordered_json config = {{"architectures", {name}},
                                   {"model_type", "bert"},
                                   {"vocab_size", a.vocab},
                                   {"hidden_size", a.width},
                                   {"num_hidden_layers", blocks.size()},
                                   {"num_attention_heads", blocks.front().attention.heads},
                                   {"intermediate_size", mlp.width},
                                   {"hidden_act", hugging_face_activation(mlp.activation)},
                                   {"max_position_embeddings", a.context},
                                   {"type_vocab_size", a.embedding.types},
                                   {"layer_norm_eps", a.embedding.norm.value_or(Norm{}).epsilon}};
  if (a.task == Task::masked_lm) {
    config["tie_word_embeddings"] = a.head.tied;
  }
  if (a.task == Task::classifier) {
    write_labels(config, a.head.classes.value_or(0));
  }
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  binder.module("bert.embeddings.word_embeddings", {"embed.token"});
  binder.module("bert.embeddings.position_embeddings", {"embed.position"});
  binder.module("bert.embeddings.token_type_embeddings", {"embed.type"});
  binder.module("bert.embeddings.LayerNorm", {"embed.norm"});
  const size_t blocks = expanded_blocks(a).size();
  for (size_t n = 0; n < blocks; ++n) {
    const std::string theirs = fmt::format("bert.encoder.layer.{}.", n);
    const std::string attention = fmt::format("blocks.{}.attention.", n), mlp = fmt::format("blocks.{}.mlp.", n);
    binder.module(theirs + "attention.self.query", {attention + "query"});
    binder.module(theirs + "attention.self.key", {attention + "key"});
    binder.module(theirs + "attention.self.value", {attention + "value"});
    binder.module(theirs + "attention.output.dense", {attention + "output"});
    binder.module(theirs + "attention.output.LayerNorm", {attention + "norm"});
    binder.module(theirs + "intermediate.dense", {mlp + "up"});
    binder.module(theirs + "output.dense", {mlp + "down"});
    binder.module(theirs + "output.LayerNorm", {mlp + "norm"});
  }
  if (a.task != Task::masked_lm) {
    binder.module("bert.pooler.dense", {"head.transform"});
    binder.module("classifier", {"head"});
    return binder.take();
  }
  binder.module("cls.predictions.transform.dense", {"head.transform"});
  binder.module("cls.predictions.transform.LayerNorm", {"head.transform.norm"});
  if (a.head.tied) {
    binder.tensor("cls.predictions.bias", "head.bias");
    binder.copy("cls.predictions.decoder.bias", "head.bias");
    binder.copy("cls.predictions.decoder.weight", "embed.token.weight");
  } else {
    binder.module("cls.predictions.decoder", {"head"});
  }
  return binder.take();
}

}  // namespace

const Family& family_bert() {
  static const Family family = {
      .model_type = "bert",
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
