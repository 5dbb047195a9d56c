#include "pare/verify/settings.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "pare/arch/architecture_json.h"
#include "pare/arch/norms.h"
#include "pare/arch/sublayer.h"
#include "pare/arch/words.h"
#include "pare/proof/settings.h"
#include "pare/support/json.h"

namespace pare {

namespace {

std::string text_of(int64_t value) {
  return std::to_string(value);
}
std::string text_of(double value) {
  return fmt::format("{}", value);
}
std::string text_of(const std::string& value) {
  return value;
}
std::string text_of(bool value) {
  return value ? "true" : "false";
}
std::string text_of(const Alibi& alibi) {
  const char* text = alibi.scaled ? "scaled" : "not scaled";
  return alibi.steepest == Alibi{}.steepest ? text : fmt::format("{}, slopes to 2^-{:g}", text, alibi.steepest);
}
std::string text_of(Rope rope) {
  JsonWriter writer;
  describe(writer, rope);
  return writer.json.dump();
}
template <class Enum>
requires std::is_enum_v<Enum> std::string text_of(Enum value) {
  return word_of(value);
}
template <class Value>
std::string text_of(const std::optional<Value>& value) {
  return value ? text_of(*value) : "none";
}

class Differences {
 public:
  template <class Value>
  void same(const std::string& setting, const Value& reference, const Value& candidate) {
    if (!(reference == candidate)) {
      list.push_back({setting, text_of(reference), text_of(candidate)});
    }
  }
  void at_least(const std::string& setting, int64_t reference, int64_t candidate) {
    if (candidate < reference) {
      list.push_back({setting, text_of(reference), text_of(candidate)});
    }
  }
  std::vector<SettingDifference> list;
};

void compare_attention(Differences& differences, const std::string& path, const Attention& a, const Attention& b) {
  differences.same(path + "mask", a.mask, b.mask);
  differences.same(path + "window", a.window, b.window);
  differences.same(path + "alibi", a.alibi, b.alibi);
  differences.same(path + "rope", a.rope, b.rope);
  differences.same(path + "softcap", a.softcap, b.softcap);
  differences.same(path + "shaped", a.shaped, b.shaped);
  // One with an epsilon above 1 may be a constant, in the matrices of the other: rows and the proof tell.
  const auto normalises = [](const Attention& t) { return t.qk_norm && t.qk_norm->epsilon <= 1; };
  differences.same(path + "qk_norm", normalises(a), normalises(b));
  if (a.qk_norm && b.qk_norm) {
    differences.same(path + "qk_norm.epsilon", a.qk_norm->epsilon, b.qk_norm->epsilon);
    differences.same(path + "qk_norm.kind", a.qk_norm->kind, b.qk_norm->kind);
    differences.same(path + "qk_norm.place", a.qk_norm->place, b.qk_norm->place);
    differences.same(path + "qk_norm_over", a.qk_norm_over, b.qk_norm_over);
  }
}

// Two kinds can be the same function: rows and the proof tell.
void compare_mlp(Differences& differences, const std::string& path, const Mlp& a, const Mlp& b) {
  if (a.kind.index() != b.kind.index()) {
    return;
  }
  const std::vector<MlpSetting> first = fixed_settings(a), second = fixed_settings(b);
  for (size_t i = 0; i < first.size(); ++i) {
    differences.same(path + first[i].name, first[i].value, second[i].value);
  }
}

std::vector<SettingDifference> compare_blocks(const std::string& path, const Block& a, const Block& b) {
  Differences differences;
  compare_attention(differences, path + "attention.", a.attention, b.attention);
  if (a.mlp && b.mlp) {
    compare_mlp(differences, path + "mlp.", *a.mlp, *b.mlp);
  }
  return std::move(differences.list);
}

using Layers = std::vector<const Block*>;  // one for each that runs

Layers layers_of(const Architecture& a) {
  Layers layers;
  for (const int64_t block : layer_blocks(a)) {
    layers.push_back(&a.blocks[block]);
  }
  return layers;
}

// How many of the first are found in the second, in their order.
size_t found_in_order(const Layers& fewer, const Layers& more) {
  size_t found = 0;
  for (const Block* layer : more) {
    found += found < fewer.size() && compare_blocks("", *fewer[found], *layer).empty() ? 1 : 0;
  }
  return found;
}

// What sets a block apart from the one that is most like it.
std::vector<SettingDifference> nearest(const std::string& path, const std::vector<Block>& all, const Block& block) {
  std::vector<SettingDifference> least = compare_blocks(path, all.front(), block);
  for (size_t n = 1; n < all.size() && !least.empty(); ++n) {
    std::vector<SettingDifference> found = compare_blocks(path, all[n], block);
    if (found.size() < least.size()) {
      least = std::move(found);
    }
  }
  return least;
}

// One has more layers than the other, so nobody knows which belong together.
void compare_unpaired(Differences& differences, const Architecture& a, const Architecture& b) {
  bool is_known = true;
  for (size_t n = 0; n < b.blocks.size(); ++n) {
    for (SettingDifference& found : nearest(fmt::format("block {}: ", n), a.blocks, b.blocks[n])) {
      differences.list.push_back(std::move(found));
      is_known = false;
    }
  }
  const Layers first = layers_of(a), second = layers_of(b);
  const bool has_more = second.size() > first.size();
  const size_t all = std::min(first.size(), second.size());
  const size_t found = has_more ? found_in_order(first, second) : found_in_order(second, first);
  if (is_known && found < all) {
    const std::string one = fmt::format("{} layers", all),
                      other = fmt::format("nothing like layer {} in its place", found);
    differences.list.push_back({"the order of settings", has_more ? one : other, has_more ? other : one});
  }
}

void compare_layers(Differences& differences, const Architecture& a, const Architecture& b) {
  const Layers first = layers_of(a), second = layers_of(b);
  if (first.size() != second.size()) {
    compare_unpaired(differences, a, b);
    return;
  }
  for (size_t layer = 0; layer < first.size(); ++layer) {
    for (SettingDifference& found : compare_blocks(fmt::format("layer {}: ", layer), *first[layer], *second[layer])) {
      differences.list.push_back(std::move(found));
    }
  }
}

void compare_norms(Differences& differences, Architecture a, Architecture b) {
  const std::vector<PlacedNorm> first = norms_of(a), second = norms_of(b);
  for (const PlacedNorm& one : first) {
    for (const PlacedNorm& other : second) {
      if (one.module == other.module) {
        differences.same(name_of(one.module) + ".epsilon", one.norm->epsilon, other.norm->epsilon);
      }
    }
  }
}

}  // namespace

std::vector<SettingDifference> compare_settings(const Architecture& reference, const Architecture& candidate) {
  Architecture a = reference, b = candidate;
  erase_wide_windows(a, reference.context);
  erase_wide_windows(b, reference.context);
  Differences differences;
  if (!a.embedding.patch) {
    differences.same("vocab", a.vocab, b.vocab);
    differences.at_least("context", a.context, b.context);
    // One type is none: all tokens have it.
    differences.at_least("embedding.types", std::max<int64_t>(1, a.embedding.types),
                         std::max<int64_t>(1, b.embedding.types));
    const auto hidden = [](const Embedding& e) { return e.masked ? std::optional(e.masked->id) : std::nullopt; };
    const auto usual = [](const Embedding& e) { return e.masked ? e.masked->usual : 0.0; };
    differences.same("embedding.masked", hidden(a.embedding), hidden(b.embedding));
    differences.same("embedding.masked.usual", usual(a.embedding), usual(b.embedding));
    differences.same("embedding.position_pad", a.embedding.position_pad, b.embedding.position_pad);
  }
  differences.same("head.softcap", a.head.softcap, b.head.softcap);
  differences.same("head.scale", a.head.scale, b.head.scale);
  differences.same("head.pool", a.head.pool, b.head.pool);
  const auto pool_heads = [](const Head& h) { return h.attention_pool ? h.attention_pool->heads : int64_t{0}; };
  differences.same("head.attention_pool.heads", pool_heads(a.head), pool_heads(b.head));
  differences.same("head.pool_token", a.head.pool_token, b.head.pool_token);
  compare_layers(differences, a, b);
  compare_norms(differences, a, b);
  return std::move(differences.list);
}

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
bool keeps(Dtype type, const ModelFolder& folder, const std::string& name, const Weight& weight) {
  if (word(weight.dtype()).empty() || holds(type, folder.stored_dtype(name))) {
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
  const bool all = type && std::ranges::all_of(weights, [&](const auto& entry) {
                     return keeps(*type, folder, entry.first, entry.second);
                   });
  return all ? "nothing" : name;
}

std::string text_of(const std::map<std::string, json>& all, const std::string& key) {
  const auto found = all.find(key);
  return found == all.end() ? "none" : json_shown(found->second);
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

namespace {

// Into `rounded`, which has changed if the answer is true.
bool take_what_was_meant(json& rounded, const json& other) {
  if (rounded.is_number() && other.is_number() && rounded != other) {
    const bool meant = static_cast<float>(rounded.get<double>()) == static_cast<float>(other.get<double>());
    rounded = meant ? other : rounded;
    return meant;
  }
  bool changed = false;
  if (rounded.is_structured() && rounded.type() == other.type() && rounded.size() == other.size()) {
    auto there = other.begin();
    for (auto here = rounded.begin(); here != rounded.end(); ++here, ++there) {
      const bool same_place = !rounded.is_object() || here.key() == there.key();
      changed = (same_place && take_what_was_meant(*here, *there)) || changed;
    }
  }
  return changed;
}

}  // namespace

std::optional<ModelFolder> with_settings_meant(const ModelFolder& gguf, const ModelFolder& other) {
  json rounded = architecture_to_json(gguf.model.architecture);
  const json exact = architecture_to_json(other.model.architecture);
  if (gguf.gguf.empty() || !other.gguf.empty() || !take_what_was_meant(rounded, exact)) {
    return std::nullopt;
  }
  ModelFolder told = gguf;
  told.model.architecture = architecture_from_json(rounded, gguf.path.string());
  return told;
}

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
