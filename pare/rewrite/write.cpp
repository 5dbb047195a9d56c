#include "pare/rewrite/write.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/algebra/operations.h"
#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/modeling_code.h"
#include "pare/rewrite/compatible.h"
#include "pare/rewrite/refusals.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"

namespace pare {

namespace {

namespace fs = std::filesystem;

Weight stored_as(const std::string& name, const Weight& weight, Dtype dtype) {
  if (weight.dtype() == dtype || word(weight.dtype()).empty()) {  // as it is, or an index
    return weight;
  }
  if (dtype != Dtype::f16) {
    return rounded(weight, dtype);
  }
  const Weight checked = Weight::made(
      weight.formula(), weight.dtype(), weight.shape(), {weight},
      [name](std::vector<at::Tensor>& in) {
        refuse_beyond_float16(name, in[0]);
        return in[0];
      },
      Weight::Rows::each);
  return rounded(checked, dtype);
}

Weights stored_types(const ModelFolder& source, const Weights& weights, const std::optional<Dtype>& wanted) {
  Weights typed;
  for (const auto& [name, weight] : weights) {
    const Dtype kept = source.model.weights.contains(name) ? source.stored_dtype(name) : source.dtype;
    typed[name] = stored_as(name, weight, wanted.value_or(kept));
  }
  return typed;
}

// The source's own config.json, with those keys changed that the family says differently of the result: all others stay
// as they were spelled, also those that change no computation (token ids, names).
std::string family_config_text(const Family& family, const ModelFolder& source, const Architecture& architecture,
                               const std::optional<Dtype>& dtype) {
  const nlohmann::ordered_json written = config_or_refuse(family, architecture),
                               said = family_config(family, source.model.architecture);
  nlohmann::ordered_json config = parse_json(source.config, (source.path / "config.json").string());
  for (const auto& [key, value] : written.items()) {
    if (!said.contains(key) || said.at(key) != value) {
      config[key] = value;
    }
  }
  // A file that ties two different tensors is read as untied, and says so from now on.
  constexpr const char* tie = "tie_word_embeddings";
  const bool has_table_head = architecture.task == Task::causal_lm || architecture.task == Task::masked_lm;
  if (has_table_head && written.contains(tie) && written.at(tie) == false &&
      (!config.contains(tie) || config.at(tie) != false)) {
    config[tie] = false;
  }
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (dtype && config.contains(key)) {
      config[key] = word(*dtype);
    }
  }
  return config.dump(2) + "\n";
}

// What a family says, and of the source's keys those that generation, or transformers, asks a folder for.
std::string foreign_config_text(const Family& family, const ModelFolder& source, const Architecture& architecture,
                                const std::optional<Dtype>& dtype) {
  nlohmann::ordered_json config = config_or_refuse(family, architecture);
  refuse_if(
      config.contains("text_config"),
      "the family {} is a text model beside a tower for images, and there is none to write: {}_text is the text alone",
      family.model_type, family.model_type);
  const nlohmann::json said =
      source.config.empty() ? nlohmann::json::object() : parse_json(source.config, source.path.string());
  std::vector<std::string> kept = {"bos_token_id", "eos_token_id"};
  if (family.model_type == source.family) {
    kept.insert(kept.end(), {"architectures", "auto_map", "dtype"});
  }
  for (const std::string& key : kept) {
    if (const auto value = said.find(key); value != said.end() && !value->is_null()) {
      config[key] = *value;
    }
  }
  if (dtype && config.contains("dtype")) {
    config["dtype"] = word(*dtype);
  }
  return config.dump(2) + "\n";
}

// What the model has no use for goes along as it is. A copy of a tied tensor is one of what that became: transformers
// takes two tensors that differ for untied.
void add_unused(Prepared& prepared, const Family& family, const ModelFolder& source) {
  Weights& weights = prepared.model.weights;
  const auto called = [&](const std::string& name) { return written_name(family, prepared.model.architecture, name); };
  for (const auto& [name, unused] : source.unused) {
    if (weights.contains(called(name))) {  // the result reads it: a head that was tied
      continue;
    }
    const auto original = weights.find(called(unused.copy_of));
    if (unused.copy_of.empty()) {
      prepared.copied.emplace(called(name), CopiedTensor{unused.file, unused.stored});
    } else if (original != weights.end()) {
      const Weight again = original->second;
      weights[called(name)] = again;
    }
  }
}

}  // namespace

Prepared prepare_as(const Family& family, const ModelFolder& source, const Model& model,
                    const std::optional<Dtype>& dtype) {
  const Weights typed = stored_types(source, model.weights, dtype);
  const bool native = family.model_type == native_family().model_type, own = family.model_type == source.family;
  Prepared prepared{own && !native ? family_config_text(family, source, model.architecture, dtype)
                                   : foreign_config_text(family, source, model.architecture, dtype),
                    {model.architecture, family_weights(family, model.architecture, typed,
                                                        own ? weights_of(source.stored.files) : Weights())},
                    explain(source.model.weights, typed)};
  if (own && !native) {
    add_unused(prepared, family, source);
  }
  prepared.own_code = native && parse_json(prepared.config, "config.json").contains("auto_map");
  return prepared;
}

Prepared prepare(const ModelFolder& source, const Model& after, WrittenForm form, const std::optional<Dtype>& dtype) {
  if (form == WrittenForm::strict) {
    return prepare_as(native_family(), source, after, dtype);
  }
  return prepare_as(find_family(source.family, source.path.string()), source,
                    compatible(after, source.model.architecture), dtype);
}

std::vector<std::string> warnings_of_tokenizer(const ModelFolder& source) {
  if (source.gguf.empty()) {
    return {};
  }
  return {fmt::format("the tokenizer stays in {}: name it wherever a text is read (--tokenizer)",
                      quote(shown(source.path)))};
}

std::map<std::string, std::string> write_prepared(const fs::path& folder, const ModelFolder& source,
                                                  const Prepared& prepared, const Companions& companions,
                                                  uint64_t shard_bytes) {
  write_text_file(folder / "config.json", prepared.config);
  std::map<std::string, std::string> copied = copy_companions(source.path, companions, folder);
  if (prepared.own_code) {
    write_text_file(folder / modeling_name, modeling_code());
    copied[modeling_name] = sha256_of(modeling_code());
  }
  write_weights(folder, prepared.model.weights, shard_bytes, prepared.copied);
  return copied;
}

}  // namespace pare
