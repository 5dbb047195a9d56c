#include "pare/export/hf_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/family.h"
#include "pare/checkpoint/modeling_code.h"
#include "pare/support/error.h"
#include "pare/support/json.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

bool can_say(const Family& family, const Architecture& architecture) {
  try {
    return !family_config(family, architecture).contains("text_config");  // and what stands beside the text?
  } catch (const InputError&) {
    return false;
  }
}

// What transformers needs in order to find the Python beside the weights.
std::string with_own_code(const std::string& text, const Architecture& architecture, Dtype dtype) {
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(text);
  const ModelingClass best = modeling_class(architecture);
  const auto in_module = [](std::string_view name) { return fmt::format("{}.{}", modeling_module, name); };
  config["architectures"] = {best.ours};
  config["auto_map"] = {{"AutoConfig", in_module("PareConfig")}, {"AutoModel", in_module("PareModel")}};
  config["auto_map"][std::string(best.automatic)] = in_module(best.ours);
  if (architecture.head.sequence) {  // both heads, or that of the language model alone
    const bool causal = architecture.task == Task::causal_lm;
    config["auto_map"]["AutoModelForPreTraining"] = in_module("PareForPreTraining");
    config["auto_map"][causal ? "AutoModelForCausalLM" : "AutoModelForMaskedLM"] =
        in_module(causal ? "PareForCausalLM" : "PareForMaskedLM");
  }
  config["dtype"] = word(dtype);
  return config.dump(2) + "\n";
}

// Where the Python does more work than pare. All else it computes as pare's executor does, what caches leave out too.
std::vector<std::string> costs_of_own_code(const Architecture& architecture) {
  const bool shrunk = std::ranges::any_of(architecture.blocks, [](const Block& block) {
    return is<Shrunk>(block.attention.key) || is<Shrunk>(block.attention.value);
  });
  return shrunk ? std::vector<std::string>{"slower: matrices stored without their identity blocks are put together "
                                           "in each pass, by pare once"}
                : std::vector<std::string>();
}

// transformers rounds ALiBi to bfloat16, whatever the type of the model: a family that has it is not taken unasked.
bool has_alibi(const Architecture& architecture) {
  return std::ranges::any_of(architecture.blocks, [](const Block& block) { return block.attention.alibi.has_value(); });
}

}  // namespace

std::vector<const Family*> families_that_say(const Architecture& architecture) {
  std::vector<const Family*> able;
  for (const Family* family : families()) {
    if (can_say(*family, architecture)) {
      able.push_back(family);
    }
  }
  // Of Llama's relatives, who say the same with more keys, most programs read Llama.
  std::ranges::stable_partition(able, [](const Family* family) { return family->model_type == "llama"; });
  return able;
}

HfFolder prepare_hf(const ModelFolder& source, const std::string& wanted, const std::optional<Dtype>& dtype) {
  const Architecture& architecture = source.model.architecture;
  const bool native = source.family == native_family().model_type;
  const Family* family = &native_family();
  if (!wanted.empty()) {
    family = &find_family(wanted, "--family");
  } else if (!native) {
    family = &find_family(source.family, source.path.string());
  } else if (const std::vector<const Family*> able = families_that_say(architecture);
             !able.empty() && !has_alibi(architecture)) {
    family = able.front();
  }
  HfFolder folder{.prepared = prepare_as(*family, source, source.model, dtype),
                  .family = std::string(family->model_type)};
  if (family == &native_family()) {
    folder.prepared.own_code = true;
    folder.prepared.config = with_own_code(folder.prepared.config, architecture, dtype.value_or(source.dtype));
    folder.notes = costs_of_own_code(architecture);
  } else if (has_alibi(architecture)) {
    folder.notes.emplace_back("transformers rounds ALiBi to bfloat16 in this family; --family pare does not");
  }
  if (architecture.task == Task::causal_lm) {
    folder.notes.emplace_back("slower: each step of generate() copies its cache, where pare's has room");
  }
  return folder;
}

}  // namespace pare
