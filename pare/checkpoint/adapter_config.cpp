#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/adapter.h"
#include "pare/support/error.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

// Keys that change nothing of what is computed, or only say of which modules the file has tensors.
constexpr std::string_view neutral_adapter_keys[] = {
    "auto_mapping",   "base_model_name_or_path",
    "eva_config",     "inference_mode",
    "layers_pattern", "lora_dropout",
    "megatron_core",  "peft_version",
    "revision",       "qalora_group_size",
    "runtime_config", "task_type",
};

// Keys that are read below.
constexpr std::string_view read_adapter_keys[] = {
    "alpha_pattern",     "bias",       "exclude_modules",     "fan_in_fan_out",
    "init_lora_weights", "lora_alpha", "layers_to_transform", "modules_to_save",
    "peft_type",         "r",          "rank_pattern",        "target_modules",
    "use_rslora",
};

// Keys that switch something else on, and what that is.
constexpr std::pair<std::string_view, std::string_view> switching_adapter_keys[] = {
    {"alora_invocation_tokens", "an adapter that begins at certain tokens (aLoRA) is not supported"},
    {"arrow_config", "a choice between adapters (Arrow) is not supported"},
    {"corda_config", "CorDA changes the base model too, and is not supported"},
    {"ensure_weight_tying", "adapters that are tied to each other are not supported"},
    {"kasa_config", "KaSA is not supported"},
    {"layer_replication", "layers that are repeated are not supported"},
    {"loftq_config", "LoftQ changes the base model too, and is not supported"},
    {"lora_bias", "a bias of the adapter itself is not supported"},
    {"lora_ga_config", "LoRA-GA changes the base model too, and is not supported"},
    {"megatron_config", "Megatron's layers are not supported"},
    {"monteclora_config", "MonteCLoRA is not supported"},
    {"target_parameters", "adapters of parameters that are in no linear module are not supported"},
    {"trainable_token_indices", "rows of single tokens (trainable tokens) are not supported"},
    {"use_bdlora", "BD-LoRA is not supported"},
    {"use_dora", "DoRA is not supported: merge it with peft (merge_and_unload) first"},
    {"use_qalora", "QA-LoRA is not supported"},
    {"velora_config", "VeLoRA is not supported"},
};

template <typename Range>
bool has(const Range& range, std::string_view word) {
  return std::find(std::begin(range), std::end(range), word) != std::end(range);
}

bool is_off(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// Reads what is there; each function adds what is wrong to the problems.
class AdapterKeys {
 public:
  AdapterKeys(const json& config, Problems& problems) : config_(config), problems_(problems) {}

  const json& at(const char* key) const {
    static const json none;
    const auto found = config_.find(key);
    return found == config_.end() ? none : *found;
  }

  bool flag(const char* key) {
    const json& value = at(key);
    problems_.add_if(!value.is_null() && !value.is_boolean(), "{} is {}, expected true or false", key,
                     json_shown(value));
    return value == true;
  }

  double positive(const char* key, const json& value) {
    const double number = value.is_number() ? value.get<double>() : 0;
    problems_.add_if(!(number > 0 && std::isfinite(number)), "{} is {}, expected a positive number", key,
                     json_shown(value));
    return number;
  }

  int64_t rank(const char* key, const json& value) {
    const int64_t number = value.is_number_unsigned() && value < (1 << 30) ? value.get<int64_t>() : 0;
    problems_.add_if(number == 0, "{} is {}, expected a rank of at least 1", key, json_shown(value));
    return number;
  }

  // One number or several.
  std::set<int64_t> numbers(const char* key) {
    const json& value = at(key);
    std::set<int64_t> numbers;
    for (const json& each : value.is_array() ? value : value.is_null() ? json::array() : json::array({value})) {
      problems_.add_if(!each.is_number_integer(), "{} is {}, expected whole numbers", key, json_shown(value));
      numbers.insert(each.is_number_integer() ? each.get<int64_t>() : 0);
    }
    return numbers;
  }

  std::vector<std::string> names(const char* key) {
    const json& value = at(key);
    std::vector<std::string> names;
    if (value.is_null()) {
      return names;
    }
    const bool list = value.is_array() && std::ranges::all_of(value, [](const json& each) { return each.is_string(); });
    problems_.add_if(!list, "{} is {}, expected a list of names", key, json_shown(value));
    return list ? value.get<std::vector<std::string>>() : names;
  }

  const json& object(const char* key) {
    static const json none = json::object();
    const json& value = at(key);
    problems_.add_if(!value.is_null() && !value.is_object(), "{} is {}, expected an object", key, json_shown(value));
    return value.is_object() ? value : none;
  }

 private:
  const json& config_;
  Problems& problems_;
};

// The base model is another one than its files say where the adapter began as a part of it.
bool leaves_the_base(const json& init) {
  constexpr std::string_view plain[] = {"gaussian", "orthogonal", "eva"};
  return init.is_null() || init.is_boolean() || (init.is_string() && has(plain, init.get<std::string>()));
}

// Names with dots, perhaps the whole name: what else a pattern of Python can say is left to Python.
bool is_plain_pattern(std::string_view pattern) {
  pattern.remove_prefix(pattern.starts_with("^") ? 1 : 0);
  return !pattern.empty() && std::ranges::all_of(pattern, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  });
}

}  // namespace

AdapterSettings parse_adapter_config(std::string_view text, const std::string& subject,
                                     std::vector<std::string>* unknown) {
  const json config = parse_json(text, subject);
  refuse_if(!config.is_object(), "{} holds {}, expected an object: not the configuration of an adapter?", subject,
            config.type_name());
  Problems problems;
  AdapterKeys keys(config, problems);
  refuse_if(keys.at("peft_type") != "LORA",
            "{}: peft_type is {}, and pare reads LORA only: merge it with peft (merge_and_unload) first, where it can",
            subject, json_shown(keys.at("peft_type")));
  for (const auto& [key, value] : config.items()) {
    const auto* known =
        std::ranges::find(switching_adapter_keys, key, &std::pair<std::string_view, std::string_view>::first);
    if (known != std::end(switching_adapter_keys)) {
      problems.add_if(!is_off(value), "{} is {}: {}", key, json_shown(value), known->second);
    } else if (!has(neutral_adapter_keys, key) && !has(read_adapter_keys, key)) {
      if (unknown != nullptr) {
        unknown->push_back("adapter_config.json: " + key);
      } else {
        problems.add(
            fmt::format("key {} is not known, and may change what peft computes (--ignore-unknown-keys reads "
                        "the adapter all the same)",
                        quote(key)));
      }
    }
  }
  problems.add_if(!leaves_the_base(keys.at("init_lora_weights")),
                  "init_lora_weights is {}: it changes the base model too, which is not supported; let peft save the "
                  "adapter as a plain one (path_initial_model_for_weight_conversion)",
                  json_shown(keys.at("init_lora_weights")));
  constexpr std::string_view biases[] = {"none", "all", "lora_only"};
  const json& bias = keys.at("bias");
  problems.add_if(!bias.is_null() && !(bias.is_string() && has(biases, bias.get<std::string>())),
                  "bias is {}, expected none, all or lora_only", json_shown(bias));
  AdapterSettings settings;
  settings.alpha = keys.positive("lora_alpha", keys.at("lora_alpha"));
  settings.ranks.insert(keys.rank("r", keys.at("r")));
  for (const auto& [name, value] : keys.object("rank_pattern").items()) {
    settings.ranks.insert(keys.rank("rank_pattern", value));
  }
  for (const auto& [name, value] : keys.object("alpha_pattern").items()) {
    settings.alphas[name] = keys.positive("alpha_pattern", value);
    problems.add_if(!is_plain_pattern(name), "alpha_pattern has the pattern {}, expected the end of a module's name",
                    quote(name));
  }
  settings.by_root = keys.flag("use_rslora");
  settings.fan_in_fan_out = keys.flag("fan_in_fan_out");
  if (!keys.at("target_modules").is_string()) {
    settings.targets = keys.names("target_modules");
  }
  settings.saved = keys.names("modules_to_save");
  if (!keys.at("exclude_modules").is_string()) {
    settings.excluded = keys.names("exclude_modules");
  }
  settings.layers = keys.numbers("layers_to_transform");
  problems.throw_if_any(subject);
  return settings;
}

}  // namespace pare
