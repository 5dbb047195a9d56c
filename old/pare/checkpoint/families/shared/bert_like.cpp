#include "pare/checkpoint/families/shared/bert_like.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/families/shared/decoder_family.h"

namespace pare {

namespace {

const char* const pre_training = "ForPreTraining";

// The last whose tensors are in a file is the class of a file that names none.
std::vector<ModelClass> classes_of(const BertLike& family) {
  std::vector<ModelClass> classes;
  const auto add = [&](const char* ending, Task task, std::vector<std::string> tensors) {
    classes.push_back({fmt::format("{}{}", family.classes, ending), task, std::move(tensors)});
  };
  const auto weight_of = [](std::string_view module) { return fmt::format("{}.weight", module); };
  const std::string predictions = fmt::format("{}.{}.weight", family.predictions, family.predictions_dense);
  const std::string pooler = fmt::format("*{}.weight", family.pooler);
  add("Model", Task::encoder, {});
  add("ForMaskedLM", Task::masked_lm, {predictions});
  if (family.next_sentence) {
    add("ForNextSentencePrediction", Task::next_sentence, {weight_of(family.sequence_head), pooler});
  }
  if (!family.sequence_head.empty()) {
    add(pre_training, Task::masked_lm, {predictions, weight_of(family.sequence_head), pooler});
  }
  add("ForTokenClassification", Task::token_classifier, {"classifier.weight"});
  std::vector<std::string> classifier = {weight_of(family.classifier)};
  if (family.classifier_dense.empty()) {
    classifier.push_back(pooler);
  }
  add("ForSequenceClassification", Task::classifier, std::move(classifier));
  add("ForQuestionAnswering", Task::question_answering, {"qa_outputs.weight"});
  return classes;
}

void read_head(Config& config, Architecture& a, const BertLike& family, const HeadTransform& transform) {
  const ModelClass read_as = config.model_class(classes_of(family));
  a.task = read_as.task;
  const HeadTransform pooler = {.activation = Activation::tanh};
  a.head.bias = a.task != Task::encoder;
  if (a.task == Task::masked_lm) {
    a.head.tied = config.flag("tie_word_embeddings", true);
    a.head.transform = transform;
    if (read_as.name.ends_with(pre_training)) {
      a.head.sequence =
          SequenceHead{.classes = family.next_sentence ? 2 : config.label_count(), .bias = true, .transform = pooler};
    }
  } else if (a.task == Task::classifier || a.task == Task::token_classifier) {
    a.head.classes = config.label_count();
  } else if (a.task != Task::encoder) {
    a.head.classes = 2;
  }
  const bool pooled = a.task == Task::classifier || a.task == Task::next_sentence;
  const bool stored = a.task == Task::encoder && config.stores(fmt::format("{}.weight", family.pooler), true);
  if (pooled || stored) {
    a.head.transform = pooler;
  }
}

}  // namespace

Architecture read_bert_like(Config& config, const BertLike& family) {
  Architecture a;
  a.name = family.name;
  a.width = config.integer({"hidden_size"}, family.width, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, family.vocab, 1, most::rows);
  a.context = config.integer({"max_position_embeddings"}, 512, 1, most::rows);
  const double epsilon = config.epsilon("layer_norm_eps", 1e-12);
  a.embedding.position = Position::learned;
  a.embedding.types = config.integer({"type_vocab_size"}, 2, 1, most::rows);
  a.embedding.norm = layer_norm(epsilon);

  const int64_t layers = config.integer({"num_hidden_layers"}, 12, 1, most::layers);
  Block block;
  Attention& attention = block.attention;
  attention.heads = attention.kv_heads = config.integer({"num_attention_heads"}, family.heads, 1, most::heads);
  attention.head_width = equal_head_width(config, a.width, attention.heads);
  attention.bias = {true, true, true, true};
  attention.mask = Mask::full;
  attention.norm = layer_norm(epsilon, NormPlace::post);
  Mlp& mlp = block.mlp.emplace();
  DenseMlp& dense = mlp.kind.emplace<DenseMlp>();
  dense.width = config.integer({"intermediate_size"}, family.mlp_width, 1, 4 * most::width);
  dense.activation = config.activation("hidden_act", family.activation);
  dense.bias = {.up = true, .down = true};
  mlp.norm = layer_norm(epsilon, NormPlace::post);
  a.blocks.assign(static_cast<size_t>(layers), block);

  read_head(config, a, family, {.activation = dense.activation, .norm = layer_norm(epsilon)});
  config.only("position_embedding_type", "absolute", "relative positions are not supported");
  config.only("is_decoder", false, "an encoder used as a decoder is not supported");
  config.neutral({"is_causal"});
  return a;
}

nlohmann::ordered_json write_bert_like(const Architecture& a, const BertLike& family) {
  const Block block = a.blocks.front();
  const DenseMlp mlp = dense_mlp(block);
  nlohmann::ordered_json config;
  for (const ModelClass& one : classes_of(family)) {
    if (one.task == a.task && one.name.ends_with(pre_training) == a.head.sequence.has_value()) {
      config["architectures"] = {one.name};
    }
  }
  config.update(nlohmann::ordered_json{{"model_type", family.name},
                                       {"vocab_size", a.vocab},
                                       {"hidden_size", a.width},
                                       {"num_hidden_layers", layer_blocks(a).size()},
                                       {"num_attention_heads", block.attention.heads},
                                       {"intermediate_size", mlp.width},
                                       {"hidden_act", hugging_face_activation(mlp.activation)},
                                       {"max_position_embeddings", a.context},
                                       {"type_vocab_size", a.embedding.types},
                                       {"layer_norm_eps", a.embedding.norm.value_or(Norm{}).epsilon}});
  if (a.task == Task::masked_lm) {
    config["tie_word_embeddings"] = a.head.tied;
  }
  if (a.task == Task::classifier || a.task == Task::token_classifier) {
    write_labels(config, a.head.classes.value_or(0));
  } else if (a.head.sequence && !family.next_sentence) {
    write_labels(config, a.head.sequence->classes);
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

namespace {

// The head has a `decoder`, and a bias of its own that a tied decoder shares and an untied one leaves unread.
void bind_predictions(Binder& binder, const Architecture& a, const BertLike& family) {
  const std::string head = fmt::format("{}.", family.predictions);
  binder.module(head + std::string(family.predictions_dense), {"head.transform"});
  binder.module(head + std::string(family.predictions_norm), {"head.transform.norm"});
  if (a.head.tied) {
    binder.tensor(head + "bias", "head.bias");
    binder.copy(head + "decoder.bias", "head.bias");
    binder.copy(head + "decoder.weight", "embed.token.weight");
  } else {
    binder.module(head + "decoder", {"head"});
  }
}

}  // namespace

void bind_bert_head(Binder& binder, const Architecture& a, const BertLike& family) {
  const std::string pooler = fmt::format("{}.{}", family.name, family.pooler);
  const bool own_dense = a.task == Task::classifier && !family.classifier_dense.empty();
  if (a.task == Task::masked_lm) {
    bind_predictions(binder, a, family);
    binder.module(pooler, {"head.sequence.transform"});
    binder.module(std::string(family.sequence_head), {"head.sequence"});
    return;
  }
  binder.module(own_dense ? std::string(family.classifier_dense) : pooler, {"head.transform"});
  binder.module(std::string(a.task == Task::classifier         ? family.classifier
                            : a.task == Task::token_classifier ? "classifier"
                            : a.task == Task::next_sentence    ? family.sequence_head
                                                               : "qa_outputs"),
                {"head"});
}

}  // namespace pare
