#include "pare/checkpoint/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/config.h"
#include "pare/checkpoint/family.h"
#include "pare/checkpoint/gguf_blocks.h"
#include "pare/checkpoint/gguf_model.h"
#include "pare/checkpoint/known_keys.h"
#include "pare/checkpoint/modeling_code.h"
#include "pare/checkpoint/not_a_model.h"
#include "pare/checkpoint/pytorch_file.h"
#include "pare/checkpoint/replaceable.h"
#include "pare/checkpoint/stored_frequencies.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr const char* config_name = "config.json";
constexpr uint64_t largest_config = 16 << 20;

struct ParsedConfig {
  nlohmann::json json;
  const Family* family;
};

ParsedConfig parse(std::string_view text, const std::string& subject) {
  nlohmann::json json = parse_json(text, subject);
  refuse_if(!json.is_object(), "{} holds {}, expected an object: not a model's configuration?", subject,
            json.is_null() ? "null" : json.type_name());
  const auto type = json.find("model_type");
  refuse_if(type == json.end() || !type->is_string(),
            "{} has no model_type, which names the family: not a model's configuration?", subject);
  const Family& family = find_family(type->get<std::string>(), subject, unsupported_features(json));
  return {std::move(json), &family};
}

std::string read_config_file(const fs::path& folder) {
  const fs::path path = folder / config_name;
  if (!is_folder(folder)) {
    refuse_not_a_model(folder);
  }
  // Beside a model, an adapter changes what transformers computes, as soon as peft is installed.
  for (const char* adapter : {"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"}) {
    if (path_exists(folder / adapter)) {
      throw InputError(fmt::format("{} holds an adapter, {}: {}", quote(folder.string()), quote(adapter),
                                   path_exists(path) ? "move it to a folder of its own, and give that with --adapter"
                                                     : "give its base model, and this folder with --adapter"));
    }
  }
  if (std::error_code refused; !fs::exists(fs::symlink_status(path, refused))) {
    refuse_not_a_model(folder);
  }
  return read_text_file(path, largest_config);
}

Dtype main_dtype(const ModelFolder& folder) {
  std::map<Dtype, int64_t> elements;
  for (const auto& [name, weight] : folder.model.weights) {
    elements[folder.stored_dtype(name)] += element_count(weight.shape());
  }
  return std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; })->first;
}

// By our names, of what holds the tensors that an adapter changed.
std::map<std::string, Dtype> canonical_types(const Family& family, const Architecture& architecture,
                                             const Weights& stored, const std::map<std::string, Dtype>& types) {
  std::map<std::string, Dtype> canonical;
  for (const auto& [name, bound] : bound_names(family, architecture, stored)) {
    const auto changed = types.find(bound.in_file);
    for (const std::string& ours : changed == types.end() ? std::vector<std::string>() : bound.canonical) {
      canonical.emplace(ours, changed->second);
    }
  }
  return canonical;
}

// What is stored of a model, by the family's names; `subject` is what its configuration is called in messages.
Weights open_files(ModelFolder& opened, const std::string& file, std::string& subject) {
  if (const std::optional<fs::path> gguf = find_gguf(opened.path)) {
    subject = fmt::format("{}, read as config.json", shown(*gguf));
    GgufModel model = open_gguf_model(*gguf);
    opened.config = model.config.dump(2) + "\n";
    opened.gguf = std::move(model.files);
    return std::move(model.weights);
  }
  subject = shown(opened.path / config_name);
  opened.config = read_config_file(opened.path);
  parse(opened.config, subject);  // what is wrong with it is said before the weights are looked for
  opened.stored = open_shards(opened.path, file);
  for (const TensorFile& each : opened.stored.files) {
    if (!each.note().empty()) {
      opened.warnings.push_back(each.note());
    }
  }
  return weights_of(opened.stored.files);
}

// Of a native model that transformers is to run: what it runs is the Python beside it.
void check_modeling_code(ModelFolder& opened, const nlohmann::json& config) {
  constexpr uint64_t largest = 1 << 20;
  const fs::path path = opened.path / modeling_name;
  if (opened.family != native_family().model_type || !config.contains("auto_map")) {
    return;
  }
  const bool there = path_exists(path);
  if (!there || read_text_file(path, largest) != modeling_code()) {
    opened.warnings.push_back(
        fmt::format("{} {}: what transformers computes with this folder may be something else, and no verdict covers "
                    "it (pare export writes it anew)",
                    quote(shown(path)), there ? "is not the file that this version of pare writes" : "is missing"));
  }
}

// Into `opened`, whose warnings stand also where this throws.
void open_into(ModelFolder& opened, const std::string& file, UnknownKeys unknown, const fs::path& adapter) {
  std::string subject;
  Weights stored = open_files(opened, file, subject);
  ParsedConfig config = parse(opened.config, subject);
  add_stored_frequencies(config.json, stored, subject);
  std::set<std::string> names;
  for (const auto& [name, weight] : stored) {
    names.insert(name);
  }
  Model& model = opened.model;
  opened.family = config.family->model_type;
  check_modeling_code(opened, config.json);
  std::vector<std::string>* const ignored = unknown == UnknownKeys::ignore ? &opened.ignored_keys : nullptr;
  if (!adapter.empty()) {
    opened.adapter = open_adapter(adapter, ignored);
    names.merge(names_in(*opened.adapter));
  }
  model.architecture = read_architecture(*config.family, config.json, subject, names,
                                         {.warnings = &opened.warnings, .ignored_keys = ignored});
  std::map<std::string, Dtype> types;
  if (opened.adapter) {
    types = apply_adapter(*opened.adapter, *config.family, model.architecture, stored, opened.warnings);
  }
  const std::vector<std::string> untied =
      untie_if_different(*config.family, model.architecture, stored, shown(opened.path));
  if (!untied.empty()) {
    opened.warnings.insert(opened.warnings.end(), untied.begin(), untied.end());
    config.json["tie_word_embeddings"] = false;
    std::vector<std::string> known_already;  // and it has warned
    model.architecture =
        read_architecture(*config.family, config.json, subject, names, {.ignored_keys = &known_already});
  }
  model.weights = canonical_weights(*config.family, model.architecture, stored, shown(opened.path));
  opened.unused = unused_tensors(*config.family, model.architecture, opened.stored.files);
  opened.adapted = canonical_types(*config.family, model.architecture, stored, types);
  opened.dtype = main_dtype(opened);
}

}  // namespace

Dtype ModelFolder::stored_dtype(const std::string& tensor) const {
  const auto changed = adapted.find(tensor);
  return changed == adapted.end() ? model.weights.at(tensor).dtype() : changed->second;
}

ModelFolder open_model(const fs::path& path, UnknownKeys unknown, const fs::path& adapter) {
  const bool is_file = is_pytorch_name(path) && path_exists(path) && !is_folder(path);
  const fs::path beside = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (is_file && !path_exists(beside / config_name)) {
    refuse_not_a_model(path);
  }
  const fs::path& folder = is_file ? beside : path;
  refuse_if(path_exists(folder / "metrics.jsonl") && is_folder(folder / "checkpoints"),
            "{} is a training run: its models are in {}", quote(folder.string()), (folder / "checkpoints").string());
  ModelFolder opened;
  opened.path = folder;
  try {
    open_into(opened, is_file ? path.filename().string() : "", unknown, adapter);
  } catch (Error& error) {
    error.warnings = std::move(opened.warnings);
    throw;
  }
  return opened;
}

uint64_t stored_bytes(const ModelFolder& model) {
  uint64_t bytes = 0;
  for (const TensorFile& file : model.stored.files) {
    bytes += file.bytes();
  }
  for (const GgufFile& file : model.gguf) {
    bytes += file.bytes();
  }
  return bytes;
}

std::map<std::string, std::string> file_hashes(const ModelFolder& model) {
  std::map<std::string, std::string> hashes;
  for (const GgufFile& file : model.gguf) {
    hashes[file.path().filename().string()] = file.sha256();
  }
  if (!model.config.empty() && model.gguf.empty()) {
    hashes[config_name] = sha256_of(model.config);
  }
  if (model.stored.index) {
    hashes[model.stored.index->name] = sha256_of(model.stored.index->text);
  }
  for (const TensorFile& file : model.stored.files) {
    hashes[file.path().filename().string()] = file.sha256();
  }
  if (model.adapter) {
    hashes.merge(file_hashes(*model.adapter));
  }
  return hashes;
}

bool is_in_blocks(const ModelFolder& model) {
  return std::ranges::any_of(model.gguf, [](const GgufFile& file) {
    return std::ranges::any_of(file.tensors(), [](const auto& each) { return can_dequantise(each.second.type); });
  });
}

std::optional<QuantisedRange> quantisation_of(const ModelFolder& model) {
  if (!is_in_blocks(model)) {
    return std::nullopt;
  }
  const Family& family = find_family(model.family, model.path.string());
  const auto fact = [&](GgufFact which) {
    return canonical_weights(family, model.model.architecture, gguf_facts(model.gguf, which), shown(model.path));
  };
  return QuantisedRange{.step = fact(GgufFact::step),
                        .low = fact(GgufFact::low),
                        .high = fact(GgufFact::high),
                        .within = fact(GgufFact::within),
                        .outside = fact(GgufFact::outside),
                        .moved = fact(GgufFact::moved),
                        .group = fact(GgufFact::group)};
}

std::string types_of_gguf(const ModelFolder& model) {
  std::map<std::string_view, int64_t> counts;
  for (const GgufFile& file : model.gguf) {
    for (const auto& [name, tensor] : file.tensors()) {
      ++counts[gguf_block(tensor.type)->name];
    }
  }
  std::vector<std::pair<int64_t, std::string_view>> sorted;
  for (const auto& [type, count] : counts) {
    sorted.emplace_back(-count, type);
  }
  std::ranges::sort(sorted);
  std::string text;
  for (const auto& [count, type] : sorted) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", type, -count);
  }
  return text;
}

Architecture parse_config(std::string_view text, const std::string& subject) {
  const ParsedConfig config = parse(text, subject);
  return read_architecture(*config.family, config.json, subject);
}

std::vector<std::string> write_native_model(const fs::path& folder, const Model& model, bool replace,
                                            uint64_t shard_bytes) {
  AtomicFolder output(folder, replace ? check_replaceable_model : ReplaceCheck());
  write_text_file(output.temporary() / config_name, family_config(native_family(), model.architecture).dump(2) + "\n");
  write_weights(output.temporary(), family_weights(native_family(), model.architecture, model.weights), shard_bytes);
  return output.commit();
}

}  // namespace pare
