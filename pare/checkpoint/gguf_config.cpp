// The metadata of a GGUF file as the config.json of the family that it was made from.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "pare/checkpoint/gguf_model.h"
#include "pare/checkpoint/gguf_rope.h"
#include "pare/support/error.h"
#include "pare/support/json.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

// The end of "llama.block_count" for a model of llama; nothing for another key.
std::optional<std::string> within(const std::string& key, std::string_view architecture) {
  const std::string prefix = std::string(architecture) + ".";
  return key.starts_with(prefix) ? std::optional(key.substr(prefix.size())) : std::nullopt;
}

// That say nothing, or say it of what is no part of the function: how vectors of tokens are put together afterwards.
bool is_neutral(const std::string& key, const json& value) {
  if (key == "vocab_size" || key == "pooling_type" || key == "rope.scaling.finetuned") {
    return true;
  }
  if (key == "tensor_data_layout") {  // the order that is undone here in any case
    return value == "Meta AI original pth" || value == "jploski";
  }
  if (key == "expert_count" || key == "expert_used_count" || key == "rope.scaling.attn_factor") {
    return value == (key.starts_with("rope") ? 1 : 0);
  }
  return false;
}

std::string known_architectures() {
  return fmt::format("{}", fmt::join(mapped(gguf_families(), &GgufFamily::architecture), ", "));
}

}  // namespace

std::optional<int64_t> GgufReading::whole(std::string_view key) const {
  const std::string name = fmt::format("{}.{}", metadata.at("general.architecture").get<std::string>(), key);
  const auto found = metadata.find(name);
  return found != metadata.end() && found->second.is_number_integer() ? std::optional(found->second.get<int64_t>())
                                                                      : std::nullopt;
}

bool gguf_head_is_another(std::string_view model_type) {
  return model_type == "llama" || model_type == "phi" || model_type == "gpt_neox" || model_type.starts_with("qwen");
}

const GgufFamily& gguf_family(const GgufMetadata& metadata, const std::string& subject) {
  const auto kind = metadata.find("general.type");
  if (kind != metadata.end() && kind->second != "model") {
    throw InputError(fmt::format("{} holds {}, as general.type says, and no model", subject, json_shown(kind->second)));
  }
  const auto named = metadata.find("general.architecture");
  refuse_if(named == metadata.end() || !named->second.is_string(),
            "{} has no general.architecture, which names the family: not a model?", subject);
  const std::string name = named->second.get<std::string>();
  const std::vector<GgufFamily>& families = gguf_families();
  const auto found = std::ranges::find(families, name, &GgufFamily::architecture);
  refuse_if(found == families.end(), "{} is of the architecture {}; read from GGUF are {}", subject, quote(name),
            known_architectures());
  return *found;
}

json gguf_config(const GgufMetadata& metadata, const std::map<std::string, Shape>& tensors,
                 const std::string& subject) {
  const GgufFamily& family = gguf_family(metadata, subject);
  json config = {{"model_type", family.model_type}, {"architectures", {family.model_class}}};
  GgufReading reading{metadata, tensors, config};

  std::map<std::string, json> left;
  for (const auto& [key, value] : metadata) {
    if (value.is_number_float() && !std::isfinite(value.get<double>())) {  // JSON could not say it
      throw InputError(fmt::format("{}: {} is {}, expected a finite number", subject, quote(key), value.get<double>()));
    }
    if (const std::optional<std::string> own = within(key, family.architecture); own && !is_neutral(*own, value)) {
      left[*own] = value;
    } else if (key.starts_with("adapter.") || key.starts_with("clip.")) {
      config[key] = value;  // parts that no model of text has
    }
  }
  for (const GgufKey& key : family.keys) {
    if (const auto found = left.find(std::string(key.theirs)); found != left.end()) {
      config[key.family] = found->second;
      left.erase(found);
    }
  }
  // Heads that are wider in values than in keys no family has; those that are the same say nothing.
  const int64_t heads = reading.whole("attention.head_count").value_or(0);
  const int64_t even = heads > 0 ? reading.whole("embedding_length").value_or(0) / heads : 0;
  const int64_t head_width = reading.whole("attention.key_length").value_or(even);
  for (const char* const key : {"attention.key_length", "attention.value_length"}) {
    if (const auto found = left.find(key); found != left.end() && found->second == head_width) {
      left.erase(found);
    }
  }
  if (const auto found = left.find("attention.head_count_kv"); found != left.end() && found->second == heads) {
    left.erase(found);  // of a family that has no other
  }
  if (const auto found = left.find("attention.causal"); found != left.end()) {
    config["is_causal"] = found->second;
    left.erase(found);
  }
  if (const auto found = left.find("expert_count"); found != left.end()) {
    config["num_local_experts"] = found->second;
    left.erase(found);
  }
  if (family.model_type != "gpt2" && family.model_type != "bert") {
    config["rope_parameters"] = rope_of_gguf(left, head_width);
  }
  if (const auto table = tensors.find("token_embd.weight"); table != tensors.end() && table->second.size() == 2) {
    config["vocab_size"] = table->second.front();
  }
  // Without a head of its own the table is the head. Where there is one, a family that ties looks whether it is
  // another.
  const auto told = metadata.find(gguf_tied_head);
  const json tied = told != metadata.end() ? told->second : json();
  if (family.model_type != "bert" && (!reading.has("output.weight") || tied == true)) {
    config["tie_word_embeddings"] = true;
  } else if (gguf_head_is_another(family.model_type) || tied == false) {
    config["tie_word_embeddings"] = false;
  }
  if (family.finish) {
    family.finish(reading);
  }
  for (const auto& [key, value] : left) {
    config[fmt::format("{}.{}", family.architecture, key)] = value;
  }
  return config;
}

}  // namespace pare
