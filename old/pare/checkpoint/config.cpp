#include "pare/checkpoint/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "pare/support/text.h"

namespace pare {

namespace {

using nlohmann::json;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) {
    text.resize(57);
    text += "...";
  }
  return text;
}

// What Python calls false: such a value never switches a feature on.
bool is_off(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// Keys of any model that leave its function alone: training, generation, labels, bookkeeping.
constexpr std::string_view neutral_keys[] = {
    "_*",
    "*_token_id",
    "*_token_ids",
    "*dropout*",
    "*_pdrop",
    "architectures",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tie_last_hidden_states",
    "tie_word_embeddings",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
};

// Keys that change what any model computes, unless its family reads them; each with what pare lacks for it.
constexpr std::pair<std::string_view, std::string_view> switching_keys[] = {
    {"add_cross_attention", "cross attention is not supported"},
    {"adapters", "adapters are not supported: merge them into the model first"},
    {"attention_chunk_size", "chunked attention is not supported"},
    {"auto_map", "models with code of their own are not supported"},
    {"compression_config", "quantised weights are not supported"},
    {"cross_attention_hidden_size", "cross attention is not supported"},
    {"cross_attention_layers", "cross attention is not supported"},
    {"fusion_config", "fused modules are not supported"},
    {"is_encoder_decoder", "encoder-decoder models are not supported"},
    {"layer_types", "this family has no kinds of layers"},
    {"moe_num_experts", "mixtures of experts are not supported"},
    {"n_routed_experts", "mixtures of experts are not supported"},
    {"num_experts", "mixtures of experts are not supported"},
    {"num_local_experts", "mixtures of experts are not supported"},
    {"per_layer_config", "settings of single layers are not supported"},
    {"pruned_heads", "pruned heads are not supported"},
    {"quantization", "quantised weights are not supported"},
    {"quantization_config", "quantised weights are not supported"},
    {"sliding_window", "this family has no window"},
};

bool is_switching(std::string_view key) {
  return std::any_of(std::begin(switching_keys), std::end(switching_keys),
                     [&](const auto& entry) { return entry.first == key; });
}

// Why a switching key that the family did not read is refused.
std::string refusal_of(std::string_view key, const json& value) {
  const auto known = std::find_if(std::begin(switching_keys), std::end(switching_keys),
                                  [&](const auto& entry) { return entry.first == key; });
  // The method may stand where a long value is cut.
  const bool names_method = value.is_object() && value.contains("quant_method");
  return fmt::format("{} is {}: {}", key, names_method ? shown(value["quant_method"]) : shown(value), known->second);
}

}  // namespace

std::vector<std::string> unsupported_features(const json& config) {
  std::vector<std::string> reasons;
  for (const auto& [key, value] : config.items()) {
    if (is_switching(key) && !is_off(value)) {
      reasons.push_back(refusal_of(key, value));
    }
  }
  return reasons;
}

Config::Config(json json, std::string subject, std::optional<std::set<std::string>> tensors,
               std::vector<std::string>* warnings)
    : json_(std::move(json)),
      subject_(std::move(subject)),
      tensors_(std::move(tensors)),
      shared_(std::make_shared<Shared>()) {
  shared_->warnings = warnings;
}

Config::Config(json json, std::string prefix, std::shared_ptr<Shared> shared)
    : json_(std::move(json)), prefix_(std::move(prefix)), shared_(std::move(shared)) {}

const json* Config::find(std::string_view key) {
  read_.emplace(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

const json* Config::find_one(std::initializer_list<std::string_view> keys, std::string_view& key) {
  const json* found = nullptr;
  for (std::string_view alias : keys) {
    const json* value = find(alias);
    if (value && found && *value != *found) {
      problem(fmt::format("{} is {} but {}, another name of the same setting, is {}", key, shown(*found), alias,
                          shown(*value)));
    } else if (value && !found) {
      found = value;
      key = alias;
    }
  }
  return found;
}

void Config::problem(std::string text) {
  shared_->problems.add(std::move(text));
}

void Config::warn(std::string text) const {
  if (shared_->warnings != nullptr) {
    shared_->warnings->push_back(std::move(text));
  }
}

void Config::wrong(std::string_view key, const json& found, std::string_view expected) {
  problem(fmt::format("{}{} is {}; expected {}", prefix_, escaped(key), shown(found), expected));
}

int64_t Config::integer(std::initializer_list<std::string_view> keys, int64_t fallback, int64_t least, int64_t most) {
  std::string_view key;
  const json* found = find_one(keys, key);
  if (!found) {
    return fallback;
  }
  const bool fits = found->is_number_integer() && (!found->is_number_unsigned() || found->get<uint64_t>() <= INT64_MAX);
  if (!fits || found->get<int64_t>() < least || found->get<int64_t>() > most) {
    wrong(key, *found,
          least == most ? std::to_string(least)
                        : fmt::format("a whole number from {} to {}", with_commas(least), with_commas(most)));
    return fallback;
  }
  return found->get<int64_t>();
}

double Config::number(std::initializer_list<std::string_view> keys, double fallback, double least, double most) {
  std::string_view key;
  const json* found = find_one(keys, key);
  if (!found) {
    return fallback;
  }
  const double value = found->is_number() ? found->get<double>() : NAN;
  if (!(value >= least && value <= most)) {
    wrong(key, *found, fmt::format("a number from {} to {}", least, most));
    return fallback;
  }
  return value;
}

std::vector<double> Config::numbers(std::string_view key, size_t count, double least, double most) {
  const json& found = raw(key);
  bool fits = found.is_array() && found.size() == count;
  std::vector<double> values;
  for (size_t i = 0; fits && i < count; ++i) {
    values.push_back(found[i].is_number() ? found[i].get<double>() : NAN);
    fits = values.back() >= least && values.back() <= most;
  }
  if (!fits) {
    wrong(key, found, fmt::format("a list of {} numbers from {} to {}", count, least, most));
  }
  return values;
}

bool Config::flag(std::string_view key, bool fallback) {
  const json* found = find(key);
  if (found && !found->is_boolean()) {
    wrong(key, *found, "true or false");
  }
  return found && found->is_boolean() ? found->get<bool>() : fallback;
}

std::string Config::text(std::string_view key, std::string_view fallback) {
  const json* found = find(key);
  if (found && !found->is_string()) {
    wrong(key, *found, "a string");
  }
  return found && found->is_string() ? found->get<std::string>() : std::string(fallback);
}

Activation Config::activation(std::string_view key, std::string_view fallback) {
  // Spellings that differ only in how they are computed, or in the last digits of a constant, are one function.
  static const std::vector<std::pair<std::string, Activation>> names = {
      {"gelu", Activation::gelu},
      {"gelu_python", Activation::gelu},
      {"gelu_new", Activation::gelu_tanh},
      {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"gelu_python_tanh", Activation::gelu_tanh},
      {"gelu_fast", Activation::gelu_tanh},
      {"gelu_accurate", Activation::gelu_tanh},
      {"quick_gelu", Activation::quick_gelu},
      {"relu", Activation::relu},
      {"relu2", Activation::relu_squared},
      {"silu", Activation::silu},
      {"swish", Activation::silu},
      {"sigmoid", Activation::sigmoid},
      {"tanh", Activation::tanh},
      {"linear", Activation::identity},
  };
  const std::string name = text(key, fallback);
  std::vector<std::string_view> known;
  for (const auto& [word, activation] : names) {
    if (word == name) {
      return activation;
    }
    known.push_back(word);
  }
  wrong(key, name, fmt::format("an activation that pare has: {}", fmt::join(known, ", ")));
  return Activation::gelu;
}

const char* hugging_face_activation(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_pytorch_tanh";
    case Activation::quick_gelu:
      return "quick_gelu";
    case Activation::relu:
      return "relu";
    case Activation::relu_squared:
      return "relu2";
    case Activation::silu:
      return "silu";
    case Activation::sigmoid:
      return "sigmoid";
    case Activation::tanh:
      return "tanh";
    case Activation::identity:
      return "linear";
  }
  PARE_UNREACHABLE("an activation without a name");
}

int64_t Config::label_count() {
  const int64_t named = integer({"num_labels"}, 2, 1, most::width);
  const json& labels = raw("id2label");
  if (labels.is_null() || has("num_labels")) {  // which transformers believes over the names
    return named;
  }
  if (!labels.is_object() || labels.empty() || labels.size() > most::width) {
    wrong("id2label", labels, "an object with a name for every class");
    return named;
  }
  return static_cast<int64_t>(labels.size());
}

void write_labels(nlohmann::ordered_json& config, int64_t classes) {
  for (int64_t i = 0; i < classes; ++i) {
    const std::string name = fmt::format("LABEL_{}", i);
    config["id2label"][std::to_string(i)] = name;
    config["label2id"][name] = i;
  }
}

bool Config::has(std::string_view key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

bool Config::is_null(std::string_view key) const {
  const auto found = json_.find(key);
  return found != json_.end() && found->is_null();
}

const json& Config::raw(std::string_view key) {
  static const json null;
  const json* found = find(key);
  return found ? *found : null;
}

Config Config::inner(std::string_view key) {
  const json& found = raw(key);
  if (!found.is_object() && !found.is_null()) {
    wrong(key, found, "an object");
  }
  return Config(found.is_object() ? found : json::object(), fmt::format("{}{}.", prefix_, key), shared_);
}

bool Config::stores(std::string_view ending, bool otherwise) const {
  if (!tensors_) {
    return otherwise;
  }
  return std::any_of(tensors_->begin(), tensors_->end(),
                     [&](const std::string& name) { return name.ends_with(ending); });
}

ModelClass Config::model_class(const std::vector<ModelClass>& classes) {
  const json& list = raw("architectures");
  if (list.is_null() || (list.is_array() && list.empty())) {
    return tensors_ ? class_of_tensors(classes) : classes.front();
  }
  if (!list.is_array() || !list[0].is_string()) {
    wrong("architectures", list, "a list with the name of a class");
    return classes.front();
  }
  const std::string name = list[0].get<std::string>();
  std::vector<std::string_view> known;
  for (const ModelClass& one : classes) {
    if (one.name == name) {
      return one;
    }
    known.push_back(one.name);
  }
  problem(fmt::format("architectures names the class {}, which is not supported; supported are {}", quote(name),
                      fmt::join(known, ", ")));
  return classes.front();
}

ModelClass Config::class_of_tensors(const std::vector<ModelClass>& classes) const {
  const auto stored = [this](const std::string& glob) {
    return std::any_of(tensors_->begin(), tensors_->end(),
                       [&](const std::string& name) { return glob_match(glob, name); });
  };
  const auto fits = [&](const ModelClass& one) {
    return !one.tensors.empty() && std::all_of(one.tensors.begin(), one.tensors.end(), stored);
  };
  const auto is_bare = [](const ModelClass& one) { return one.task == Task::encoder; };
  auto found = std::find_if(classes.rbegin(), classes.rend(), fits);
  if (found == classes.rend()) {
    found = std::find_if(classes.rbegin(), classes.rend(), is_bare);
  }
  PARE_CHECK(found != classes.rend(), "every family has a bare model");
  warn(fmt::format("{}: architectures names no class; read as {}, whose tensors these are", subject_, found->name));
  return *found;
}

void Config::only(std::string_view key, const json& value, std::string_view why) {
  const json* found = find(key);
  if (found && *found != value) {
    problem(fmt::format("{}{} is {}; only {} is supported: {}", prefix_, key, shown(*found), shown(value), why));
  }
}

void Config::neutral(std::initializer_list<std::string_view> keys) {
  for (std::string_view key : keys) {
    read_.emplace(key);
  }
}

void Config::finish() {
  for (const auto& [key, value] : json_.items()) {
    if (read_.contains(key) || value.is_null()) {
      continue;
    }
    if (!prefix_.empty()) {
      shared_->unread.push_back(prefix_ + key);
      continue;
    }
    if (is_switching(key)) {
      if (!is_off(value)) {
        problem(refusal_of(key, value));
      }
    } else if (std::none_of(std::begin(neutral_keys), std::end(neutral_keys),
                            [&key = key](std::string_view pattern) { return glob_match(pattern, key); })) {
      shared_->unread.push_back(key);
    }
  }
  if (!prefix_.empty()) {
    return;
  }
  stop_if_wrong();
  if (!shared_->unread.empty()) {
    warn(fmt::format("{}: keys without meaning for this family: {}", subject_, listed(shared_->unread)));
  }
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t most_names = 1000;  // a file may name millions
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most_names); ++i) {
    text += (i > 0 ? ", " : "") + quote(names[i]);
  }
  return names.size() > most_names ? fmt::format("{} and {} more", text, names.size() - most_names) : text;
}

}  // namespace pare
