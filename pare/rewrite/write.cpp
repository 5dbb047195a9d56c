#include "pare/rewrite/write.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "pare/algebra/operations.h"
#include "pare/checkpoint/bound_weights.h"
#include "pare/rewrite/compatible.h"
#include "pare/rewrite/refusals.h"
#include "pare/support/files.h"
#include "pare/support/json.h"

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

// The Architecture, and the ids with which texts begin and end, as the source has them: generate asks for these.
std::string native_config_text(const ModelFolder& source, const Architecture& architecture) {
  nlohmann::ordered_json config = family_config(native_family(), architecture);
  const nlohmann::json said =
      source.config.empty() ? nlohmann::json::object() : parse_json(source.config, source.path.string());
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    if (const auto id = said.find(key); id != said.end() && !id->is_null()) {
      config[key] = *id;
    }
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

Prepared prepare(const ModelFolder& source, const Model& after, WrittenForm form, const std::optional<Dtype>& dtype) {
  const bool compat = form == WrittenForm::compat;
  const Model model = compat ? compatible(after, source.model.architecture) : after;
  const Weights typed = stored_types(source, model.weights, dtype);
  Explanation explanation = explain(source.model.weights, typed);
  if (!compat || source.family == "pare") {
    return {native_config_text(source, model.architecture),
            {model.architecture, family_weights(native_family(), model.architecture, typed)},
            std::move(explanation)};
  }
  const Family& family = find_family(source.family, source.path.string());
  std::string config = family_config_text(family, source, model.architecture, dtype);
  Prepared prepared{
      std::move(config),
      {model.architecture, family_weights(family, model.architecture, typed, weights_of(source.stored.files))},
      std::move(explanation)};
  add_unused(prepared, family, source);
  return prepared;
}

std::map<std::string, std::string> write_prepared(const fs::path& folder, const ModelFolder& source,
                                                  const Prepared& prepared, const Companions& companions,
                                                  uint64_t shard_bytes) {
  write_text_file(folder / "config.json", prepared.config);
  std::map<std::string, std::string> copied = copy_companions(source.path, companions, folder);
  write_weights(folder, prepared.model.weights, shard_bytes, prepared.copied);
  return copied;
}

}  // namespace pare
