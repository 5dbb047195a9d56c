#include "pare/checkpoint/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/config.h"
#include "pare/checkpoint/family.h"
#include "pare/checkpoint/known_keys.h"
#include "pare/checkpoint/not_a_model.h"
#include "pare/checkpoint/replaceable.h"
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
      throw InputError(fmt::format("{} holds an adapter, {}, which is not supported: merge it into its base model {}",
                                   quote(folder.string()), quote(adapter),
                                   path_exists(path) ? "or take it away" : "first"));
    }
  }
  if (std::error_code refused; !fs::exists(fs::symlink_status(path, refused))) {
    refuse_not_a_model(folder);
  }
  return read_text_file(path, largest_config);
}

Dtype main_dtype(const Weights& weights) {
  std::map<Dtype, int64_t> elements;
  for (const auto& [name, weight] : weights) {
    elements[weight.dtype()] += element_count(weight.shape());
  }
  return std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; })->first;
}

// Into `opened`, whose warnings stand also where this throws.
void open_into(ModelFolder& opened, UnknownKeys unknown) {
  const std::string subject = shown(opened.path / config_name);
  opened.config = read_config_file(opened.path);
  ParsedConfig config = parse(opened.config, subject);
  opened.stored = open_shards(opened.path);
  Weights stored = weights_of(opened.stored.files);
  std::set<std::string> names;
  for (const auto& [name, weight] : stored) {
    names.insert(name);
  }
  Model& model = opened.model;
  opened.family = config.family->model_type;
  std::vector<std::string>* const ignored = unknown == UnknownKeys::ignore ? &opened.ignored_keys : nullptr;
  model.architecture = read_architecture(*config.family, config.json, subject, names,
                                         {.warnings = &opened.warnings, .ignored_keys = ignored});
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
  opened.dtype = main_dtype(model.weights);
}

}  // namespace

ModelFolder open_model(const fs::path& folder, UnknownKeys unknown) {
  refuse_if(path_exists(folder / "metrics.jsonl") && is_folder(folder / "checkpoints"),
            "{} is a training run: its models are in {}", quote(folder.string()), (folder / "checkpoints").string());
  ModelFolder opened;
  opened.path = folder;
  try {
    open_into(opened, unknown);
  } catch (Error& error) {
    error.warnings = std::move(opened.warnings);
    throw;
  }
  return opened;
}

std::map<std::string, std::string> file_hashes(const ModelFolder& model) {
  std::map<std::string, std::string> hashes;
  if (!model.config.empty()) {
    hashes[config_name] = sha256_of(model.config);
  }
  if (model.stored.index) {
    hashes[weight_index_name] = sha256_of(*model.stored.index);
  }
  for (const SafetensorsFile& file : model.stored.files) {
    hashes[file.path().filename().string()] = file.sha256();
  }
  return hashes;
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
