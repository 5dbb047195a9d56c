#include "pare/checkpoint/bert_like.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/decoder_family.h"

namespace pare {

Architecture read_bert_like(Config& config, const BertLike& family) {
  const std::string bare = fmt::format("{}Model", family.classes);
  const std::string masked = fmt::format("{}ForMaskedLM", family.classes);
  const std::string classifier = fmt::format("{}ForSequenceClassification", family.classes);
  Architecture a;
  a.name = family.name;
  a.task = config.task({{bare, Task::encoder}, {masked, Task::masked_lm}, {classifier, Task::classifier}});
  a.width = config.integer({"hidden_size"}, family.width, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, family.vocab, 1, most::rows);
  a.context = config.integer({"max_position_embeddings"}, 512, 1, most::rows);
  const double epsilon = config.epsilon("layer_norm_eps", 1e-12);
  a.embedding.position = Position::learned;
  a.embedding.types = config.integer({"type_vocab_size"}, 2, 1, most::rows);
  a.embedding.norm = layer_norm(epsilon);

  Block& block = a.blocks.emplace_back();
  block.repeat = config.integer({"num_hidden_layers"}, 12, 1, most::layers);
  Attention& attention = block.attention;
  attention.heads = attention.kv_heads = config.integer({"num_attention_heads"}, family.heads, 1, most::heads);
  attention.head_width = equal_head_width(config, a.width, attention.heads);
  attention.bias = {true, true, true, true};
  attention.mask = Mask::full;
  attention.norm = layer_norm(epsilon, NormPlace::post);
  Mlp& mlp = block.mlp.emplace();
  mlp.width = config.integer({"intermediate_size"}, family.mlp_width, 1, 4 * most::width);
  mlp.activation = config.activation("hidden_act", family.activation);
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
  } else if (config.stores(fmt::format("{}.weight", family.pooler), true)) {
    a.head.transform = pooler;
  }

  config.only("position_embedding_type", "absolute", "relative positions are not supported");
  config.only("is_decoder", false, "an encoder used as a decoder is not supported");
  config.neutral({"is_causal"});
  return a;
}

nlohmann::ordered_json write_bert_like(const Architecture& a, const BertLike& family) {
  const Block block = a.blocks.front();
  const Mlp mlp = block.mlp.value_or(Mlp{});
  const char* task = a.task == Task::masked_lm    ? "ForMaskedLM"
                     : a.task == Task::classifier ? "ForSequenceClassification"
                                                  : "Model";
  nlohmann::ordered_json config = {{"architectures", {fmt::format("{}{}", family.classes, task)}},
                                   {"model_type", family.name},
                                   {"vocab_size", a.vocab},
                                   {"hidden_size", a.width},
                                   {"num_hidden_layers", layer_blocks(a).size()},
                                   {"num_attention_heads", block.attention.heads},
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

void bind_bert_embeddings(Binder& binder, const BertLike& family) {
  const std::string theirs = fmt::format("{}.embeddings.", family.name);
  binder.module(theirs + "word_embeddings", {"embed.token"});
  binder.module(theirs + "position_embeddings", {"embed.position"});
  binder.module(theirs + "token_type_embeddings", {"embed.type"});
  binder.module(theirs + "LayerNorm", {"embed.norm"});
}

void bind_bert_layers(Binder& binder, const Architecture& a, const BertLike& family) {
  bind_blocks(binder, a, fmt::format("{}.encoder.layer", family.name),
              {{"attention.self.query", {"attention.query"}},
               {"attention.self.key", {"attention.key"}},
               {"attention.self.value", {"attention.value"}},
               {"attention.output.dense", {"attention.output"}},
               {"attention.output.LayerNorm", {"attention.norm"}},
               {"intermediate.dense", {"mlp.up"}},
               {"output.dense", {"mlp.down"}},
               {"output.LayerNorm", {"mlp.norm"}}});
}

void bind_predictions(Binder& binder, const Architecture& a, const std::string& head, const std::string& dense,
                      const std::string& norm) {
  binder.module(dense, {"head.transform"});
  binder.module(norm, {"head.transform.norm"});
  if (a.head.tied) {
    binder.tensor(head + ".bias", "head.bias");
    binder.copy(head + ".decoder.bias", "head.bias");
    binder.copy(head + ".decoder.weight", "embed.token.weight");
  } else {
    binder.module(head + ".decoder", {"head"});
  }
}

}  // namespace pare
