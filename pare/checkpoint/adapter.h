#pragma once
// A LoRA adapter, as PEFT stores it: adapter_config.json, and matrices whose products are added to weights of a base
// model. What is read is what PEFT computes with the adapter beside the model, not merged into it.

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/weights.h"

namespace pare {

struct Family;

struct AdapterSettings {
  double alpha = 0;
  std::set<int64_t> ranks;                          // r, and those of rank_pattern
  std::map<std::string, double> alphas;             // alpha_pattern: of modules whose names end so, or are all of ^name
  bool by_root = false;                             // use_rslora: divided by the root of the rank
  bool fan_in_fan_out = false;                      // as it is said; what counts is how the family stores a matrix
  std::optional<std::vector<std::string>> targets;  // none: a pattern, or all that are linear
  std::vector<std::string> saved;                   // modules_to_save
  std::vector<std::string> excluded;                // exclude_modules, where it is no pattern
  std::set<int64_t> layers;                         // layers_to_transform; none: all
};

// The text of adapter_config.json. InputError of all that pare cannot do, each with its key; keys that it does not know
// too, or into `unknown` where that is given. Pure, for the tests.
AdapterSettings parse_adapter_config(std::string_view text, const std::string& subject,
                                     std::vector<std::string>* unknown = nullptr);

struct Adapter {
  std::filesystem::path path;
  std::string config;  // the text of adapter_config.json
  AdapterSettings settings;
  TensorFile file;
};

// Opens adapter_model.safetensors, or adapter_model.bin, of a folder, and checks everything but the data.
Adapter open_adapter(const std::filesystem::path& folder, std::vector<std::string>* unknown = nullptr);
std::map<std::string, std::string> file_hashes(const Adapter& adapter);
nlohmann::ordered_json to_json(const Adapter& adapter);

// Names of whole tensors that the adapter brings, as the base model's files would call them.
std::set<std::string> names_in(const Adapter& adapter);

// What the base model's files hold with the adapter applied. Sums are exact to float64, which is their type then; in
// the answer is the type that each has in the base model's file. Only one of two tied tensors is changed where PEFT
// changes one, and then both are there. InputError of all that does not fit.
std::map<std::string, Dtype> apply_adapter(const Adapter& adapter, const Family& family,
                                           const Architecture& architecture, Weights& stored,
                                           std::vector<std::string>& warnings);

}  // namespace pare
