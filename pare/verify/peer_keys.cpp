#include "pare/verify/peer_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "pare/arch/head.h"
#include "pare/support/json.h"

namespace pare {

namespace {

using nlohmann::json;

const json absent;

const json& value_of(const json& config, const char* key) {
  const auto found = config.find(key);
  return found == config.end() ? absent : *found;
}

// What transformers takes where a family's config.json does not say.
json padding_of(const json& config, const std::string& family) {
  if (config.contains("pad_token_id")) {
    return config.at("pad_token_id");
  }
  return family == "gemma" || family == "gemma2" ? json(0) : family == "opt" ? json(1) : json();
}

// By the number of the class. Without names, or where their number is not that of the classes, transformers makes some
// up.
std::map<std::string, json> labels_of(const json& config, int64_t classes) {
  std::map<std::string, json> labels;
  if (const json& given = value_of(config, "id2label");
      given.is_object() && static_cast<int64_t>(given.size()) == classes) {
    for (const auto& [number, name] : given.items()) {
      labels[number] = name;
    }
    return labels;
  }
  for (int64_t i = 0; i < classes; ++i) {
    labels[std::to_string(i)] = fmt::format("LABEL_{}", i);
  }
  return labels;
}

// The other way round; where nothing is said, by the names.
std::map<std::string, json> numbers_of(const json& config, int64_t classes) {
  std::map<std::string, json> numbers;
  const json& given = value_of(config, "label2id");
  if (given.is_object() && static_cast<int64_t>(given.size()) == classes) {
    for (const auto& [name, number] : given.items()) {
      numbers[name] = number;
    }
    return numbers;
  }
  for (const auto& [number, name] : labels_of(config, classes)) {
    numbers[name.is_string() ? name.get<std::string>() : name.dump()] = json::parse(number, nullptr, false);
  }
  return numbers;
}

// What the pipelines of transformers do with the logits of a sequence before anybody sees them.
std::string applied_to_logits(const json& config, int64_t classes) {
  const json& problem = value_of(config, "problem_type");
  if (problem == "regression") {
    return "nothing";
  }
  return problem == "multi_label_classification" || classes == 1 ? "sigmoid" : "softmax";
}

// Every number of the one type is one of the other.
bool holds(Dtype type, Dtype stored) {
  return type == stored || type == Dtype::f64 || (type == Dtype::f32 && stored != Dtype::f64);
}

// Whether numbers are the same in that type: a wider file may hold nothing that it cannot.
bool keeps(Dtype type, const Weight& weight) {
  if (word(weight.dtype()).empty() || holds(type, weight.dtype())) {
    return true;
  }
  const at::Tensor values = weight.load();
  return values.to(scalar_type(type)).to(values.scalar_type()).equal(values);
}

// The type that transformers rounds weights to as it reads them, where that changes a number.
std::string rounded_to(const json& config, const ModelFolder& folder) {
  const json& named = value_of(config, value_of(config, "dtype").is_null() ? "torch_dtype" : "dtype");
  if (named.is_null()) {
    return "nothing";
  }
  const std::string name = named.is_string() ? named.get<std::string>() : named.dump();
  const std::optional<Dtype> type = float_dtype_from_word(name);
  const Weights& weights = folder.model.weights;
  const bool all = type && std::all_of(weights.begin(), weights.end(),
                                       [&](const auto& entry) { return keeps(*type, entry.second); });
  return all ? "nothing" : name;
}

std::string text_of(const std::map<std::string, json>& all, const std::string& key) {
  const auto found = all.find(key);
  return found == all.end() ? "none" : found->second.dump(-1, ' ', true);
}

class PeerKeys {
 public:
  void same(const std::string& key, const std::string& reference, const std::string& candidate) {
    if (reference != candidate) {
      list.push_back({fmt::format("config.json: {}", key), reference, candidate});
    }
  }
  void same(const std::string& key, const std::map<std::string, json>& reference,
            const std::map<std::string, json>& candidate) {
    std::map<std::string, json> all = reference;
    all.insert(candidate.begin(), candidate.end());
    for (const auto& [entry, value] : all) {
      same(fmt::format("{}.{}", key, entry), text_of(reference, entry), text_of(candidate, entry));
    }
  }
  std::vector<SettingDifference> list;
};

}  // namespace

std::vector<SettingDifference> compare_peer_keys(const ModelFolder& reference, const ModelFolder& candidate) {
  const auto is_peer = [](const ModelFolder& folder) { return folder.family != "pare" && !folder.config.empty(); };
  if (!is_peer(reference) || !is_peer(candidate)) {
    return {};
  }
  const json a = parse_json(reference.config, reference.path.string());
  const json b = parse_json(candidate.config, candidate.path.string());
  const Architecture& architecture = reference.model.architecture;
  PeerKeys keys;
  // Who rounds less than the reference computes what is asked for.
  if (const std::string rounded = rounded_to(b, candidate); rounded != "nothing") {
    keys.same("weights are rounded by transformers to dtype", rounded_to(a, reference), rounded);
  }
  if (architecture.task == Task::classifier && architecture.head.pool == Pool::last) {
    keys.same("pad_token_id", padding_of(a, reference.family).dump(), padding_of(b, candidate.family).dump());
  }
  const bool named = architecture.task == Task::classifier || architecture.task == Task::token_classifier;
  if (named && architecture.head.classes) {
    const int64_t classes = *architecture.head.classes;
    keys.same("id2label", labels_of(a, classes), labels_of(b, classes));
    keys.same("label2id", numbers_of(a, classes), numbers_of(b, classes));
    if (architecture.task == Task::classifier) {
      keys.same("problem_type", applied_to_logits(a, classes), applied_to_logits(b, classes));
    }
  }
  return std::move(keys.list);
}

}  // namespace pare
