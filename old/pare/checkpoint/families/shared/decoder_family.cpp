#include "pare/checkpoint/families/shared/decoder_family.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/checkpoint/config.h"
#include "pare/support/text.h"

namespace pare {

int64_t equal_head_width(Config& config, int64_t width, int64_t heads) {
  if (width % heads != 0) {
    config.problem(fmt::format("{} heads do not divide the width {}", heads, width));
  }
  return std::max<int64_t>(width / heads, 1);
}

void accept_own_classes(Config& config, std::string_view class_prefix) {
  const nlohmann::json leaves = config.raw("auto_map").flatten();
  for (const auto& [role, value] : leaves.items()) {
    const std::string path = value.is_string() ? value.get<std::string>() : "";
    // REPOSITORY--FILE.CLASS
    const std::string name = path.substr(path.rfind('.') + 1);
    if (!value.is_null() && !name.starts_with(class_prefix)) {
      config.problem(fmt::format("auto_map names {}: models with code of their own are not supported", value.dump()));
    }
  }
}

void bind_blocks(Binder& binder, const Architecture& architecture, std::string_view prefix,
                 const std::vector<BlockModule>& modules) {
  const std::vector<Block>& blocks = architecture.blocks;
  for (size_t n = 0; n < blocks.size(); ++n) {
    const Attention& t = blocks[n].attention;
    for (const BlockModule& module : modules) {
      std::vector<std::string> ours;
      for (std::string_view name : module.ours) {
        ours.push_back(fmt::format("blocks.{}.{}", n, name));
      }
      const Layout layout =
          ours.size() == 1 ? plain()
                           : stacked({t.heads / t.kv_heads * t.head_width, t.head_width, t.head_width}, t.kv_heads);
      binder.module(fmt::format("{}.{}.{}", prefix, n, module.theirs), ours, layout);
    }
  }
}

namespace {

// As the generic classes of transformers have it: one module for both kinds of classes, with a bias for tokens alone,
// and that only if a key does not forbid it.
bool shares_score(const DecoderHeads& heads) {
  return heads.tokens == "score";
}

std::vector<ModelClass> classes_of(const DecoderHeads& heads, bool tied) {
  const auto class_name = [&](std::string_view ending) { return fmt::format("{}{}", heads.classes, ending); };
  const auto weight_of = [](std::string_view module) { return fmt::format("{}.weight", module); };
  // A tied head need not be stored; but only a file of a class with a head has the prefix.
  const std::string language_tensor = tied ? fmt::format("{}*", heads.base_prefix) : weight_of(heads.language_model);
  std::vector<ModelClass> classes = {{class_name(heads.language_class), Task::causal_lm, {language_tensor}},
                                     {class_name("ForSequenceClassification"), Task::classifier, {"score.weight"}}};
  if (!heads.tokens.empty()) {
    classes.push_back({class_name("ForTokenClassification"), Task::token_classifier, {weight_of(heads.tokens)}});
    if (shares_score(heads)) {
      classes.back().tensors.push_back("score.bias");
    }
  }
  if (!heads.answers.empty()) {
    classes.push_back({class_name("ForQuestionAnswering"), Task::question_answering, {weight_of(heads.answers)}});
  }
  classes.push_back({class_name("Model"), Task::encoder, {}});
  return classes;
}

}  // namespace

void read_decoder_head(Config& config, Architecture& a, const DecoderHeads& heads, bool tied) {
  tied = config.flag("tie_word_embeddings", tied);
  a.task = config.model_class(classes_of(heads, tied)).task;
  if (a.task == Task::causal_lm) {
    a.head.tied = tied;
    a.head.bias = heads.language_bias;
  } else if (a.task == Task::classifier) {
    a.head.classes = config.label_count();
    a.head.pool = Pool::last;
  } else if (a.task == Task::token_classifier) {
    a.head.classes = config.label_count();
    a.head.bias = !shares_score(heads) || config.flag("token_classification_bias", true);
  } else if (a.task == Task::question_answering) {
    a.head.classes = 2;
    a.head.bias = true;
  }
  config.neutral({"token_classification_bias"});
}

nlohmann::ordered_json write_decoder_head(const Architecture& a, const DecoderHeads& heads) {
  nlohmann::ordered_json config;
  for (const ModelClass& one : classes_of(heads, a.head.tied)) {
    if (one.task == a.task) {
      config["architectures"] = {one.name};
    }
  }
  config["tie_word_embeddings"] = a.head.tied;
  if (a.task == Task::classifier || a.task == Task::token_classifier) {
    write_labels(config, a.head.classes.value_or(0));
  }
  if (a.task == Task::token_classifier && !a.head.bias) {
    config["token_classification_bias"] = false;
  }
  return config;
}

void bind_decoder_head(Binder& binder, const Architecture& a, const DecoderHeads& heads) {
  const std::string module(a.task == Task::classifier           ? "score"
                           : a.task == Task::token_classifier   ? heads.tokens
                           : a.task == Task::question_answering ? heads.answers
                                                                : heads.language_model);
  binder.module(module, {"head"});
  if (a.head.tied) {
    binder.copy(module + ".weight", "embed.token.weight");
  }
}

}  // namespace pare
