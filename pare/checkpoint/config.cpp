#include "pare/checkpoint/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "pare/checkpoint/known_keys.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

using nlohmann::json;

static std::string range_in_words(double least, double largest) {
  if (largest != most::number) {
    return fmt::format("number from {} to {}", least, largest);
  }
  return least == above_zero ? "finite number above 0" : fmt::format("finite number, {} or more", least);
}

Config::Config(json json, std::string subject, std::optional<std::set<std::string>> tensors, ConfigRemarks remarks)
    : json_(std::move(json)),
      subject_(std::move(subject)),
      tensors_(std::move(tensors)),
      shared_(std::make_shared<Shared>()) {
  shared_->remarks = remarks;
}

Config::Config(json json, std::string prefix, std::shared_ptr<Shared> shared)
    : json_(std::move(json)), prefix_(std::move(prefix)), shared_(std::move(shared)) {}

const json* Config::find(std::string_view key) {
  read_.emplace(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

const json* Config::find_one(const NameList& keys, std::string_view& key) {
  const json* found = nullptr;
  for (std::string_view alias : keys.all) {
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
  if (shared_->remarks.warnings != nullptr) {
    shared_->remarks.warnings->push_back(std::move(text));
  }
}

void Config::wrong(std::string_view key, const json& found, std::string_view expected) {
  problem(fmt::format("{}{} is {}; expected {}", prefix_, escaped(key), shown(found), expected));
}

int64_t Config::integer(const NameList& keys, int64_t fallback, int64_t least, int64_t most) {
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

double Config::number(const NameList& keys, double fallback, double least, double most) {
  std::string_view key;
  const json* found = find_one(keys, key);
  if (!found) {
    return fallback;
  }
  const double value = found->is_number() ? found->get<double>() : NAN;
  if (!(value >= least && value <= most)) {
    wrong(key, *found, "a " + range_in_words(least, most));
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
    wrong(key, found, fmt::format("a list of {} numbers, each a {}", count, range_in_words(least, most)));
  }
  return values;
}

bool Config::flag(std::string_view key, bool fallback) {
  const json* found = find(key);
  if (found && !found->is_boolean()) {
    wrong(key, *found, "true or false");
  }
  if (found) {
    return found->is_boolean() && found->get<bool>();
  }
  return fallback && !is_null(key);
}

std::string Config::text(std::string_view key, std::string_view fallback) {
  const json* found = find(key);
  if (found && !found->is_string()) {
    wrong(key, *found, "a string");
  }
  return found && found->is_string() ? found->get<std::string>() : std::string(fallback);
}

// Hugging Face's names. Spellings that differ only in how they are computed, or in the last digits of a constant, are
// one function; one of them is written. Some have tensors, or a constant, of one family, which reads them itself.
struct ActivationName {
  std::string_view word;
  Activation activation;
  bool written = true, read = true;
};
constexpr ActivationName activation_names[] = {
    {"gelu", Activation::gelu},
    {"gelu_python", Activation::gelu, false},
    {"gelu_new", Activation::gelu_tanh, false},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_python_tanh", Activation::gelu_tanh, false},
    {"gelu_fast", Activation::gelu_tanh, false},
    {"gelu_accurate", Activation::gelu_tanh, false},
    {"quick_gelu", Activation::quick_gelu},
    {"relu", Activation::relu},
    {"relu2", Activation::relu_squared},
    {"silu", Activation::silu},
    {"swish", Activation::silu, false},
    {"sigmoid", Activation::sigmoid},
    {"tanh", Activation::tanh},
    {"linear", Activation::identity},
    {"xielu", Activation::xielu, true, false},
    {"bloom_gelu", Activation::gelu_bloom, true, false},
};

Activation Config::activation(std::string_view key, std::string_view fallback) {
  const std::string name = text(key, fallback);
  std::vector<std::string_view> known;
  for (const ActivationName& one : activation_names) {
    if (one.word == name && one.read) {
      return one.activation;
    }
    if (one.read) {
      known.push_back(one.word);
    }
  }
  wrong(key, name, fmt::format("an activation that pare has: {}", fmt::join(known, ", ")));
  return Activation::gelu;
}

std::string_view hugging_face_activation(Activation activation) {
  for (const ActivationName& one : activation_names) {
    if (one.written && one.activation == activation) {
      return one.word;
    }
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
  return inner(key, found.is_object() ? found : json::object());
}

Config Config::inner(std::string_view key, json object) {
  return Config(std::move(object), fmt::format("{}{}.", prefix_, key), shared_);
}

Config Config::within(std::string_view key, const std::vector<std::string_view>& outer) {
  const json& found = raw(key);
  Config whole = inner(key);
  for (std::string_view name : outer) {
    neutral({name});
    whole.json_.erase(std::string(name));
    if (const auto value = json_.find(name); value != json_.end()) {
      whole.json_[std::string(name)] = *value;
    }
  }
  if (found.is_null()) {
    wrong(key, found, "an object: it describes the model");
  }
  whole.whole_within_ = true;
  whole.subject_ = subject_;
  whole.tensors_ = tensors_;
  return whole;
}

bool Config::stores(std::string_view ending, bool otherwise) const {
  if (!tensors_) {
    return otherwise;
  }
  return std::any_of(tensors_->begin(), tensors_->end(),
                     [&](const std::string& name) { return name.ends_with(ending); });
}

static bool same_letters(std::string_view a, std::string_view b) {
  const auto small = [](unsigned char letter) { return std::tolower(letter); };
  return std::ranges::equal(a, b, {}, small, small);
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
    if (same_letters(one.name, name)) {  // MPT's first files have MPTForCausalLM
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
    return !one.tensors.empty() && std::ranges::all_of(one.tensors, stored);
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
  const json& found = raw(key);
  const bool fits = found.is_null() ? value != true || !is_null(key) : found == value;
  if (!fits) {
    problem(fmt::format("{}{} is {}; only {} is supported: {}", prefix_, key, shown(found), shown(value), why));
  }
}

void Config::neutral(const std::vector<std::string_view>& keys) {
  for (std::string_view key : keys) {
    read_.emplace(key);
  }
}

void Config::finish() {
  for (const auto& [key, value] : json_.items()) {
    if (read_.contains(key)) {
      continue;
    }
    const KnownKey known = is_whole() ? known_key(key, value) : KnownKey{};
    if (!known.refusal.empty()) {
      problem(known.refusal);
    } else if (!known.is_neutral) {
      shared_->unknown.push_back(prefix_ + key);
    }
  }
  if (prefix_.empty()) {
    finish_unknown();
    stop_if_wrong();
  }
}

void Config::finish_unknown() {
  const std::vector<std::string>& unknown = shared_->unknown;
  if (unknown.empty()) {
    return;
  }
  const std::string keys = fmt::format("{} that pare does not know for this family: {}",
                                       unknown.size() == 1 ? "a key" : "keys", listed(unknown));
  if (shared_->remarks.ignored_keys == nullptr) {
    problem(
        fmt::format("{}; what transformers computes may depend on {}: take {} out, or have {} ignored with "
                    "--ignore-unknown-keys",
                    keys, unknown.size() == 1 ? "it" : "them", unknown.size() == 1 ? "it" : "them",
                    unknown.size() == 1 ? "it" : "them"));
    return;
  }
  shared_->remarks.ignored_keys->insert(shared_->remarks.ignored_keys->end(), unknown.begin(), unknown.end());
  warn(fmt::format("{}: ignored {}", subject_, keys));
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
