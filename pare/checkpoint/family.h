#pragma once
// A Hugging Face family: how its config.json and its tensor names translate to ours, and back.
// One file per family in families/, defining `const Family& family_NAME()`; the build finds it by its file name.

#include <ATen/core/Tensor.h>

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "pare/arch/architecture.h"

namespace pare {

class Config;

// How one stored tensor holds one or several of ours. Both directions are exact: only views, copies and permutations.
struct Layout {
  std::function<std::vector<at::Tensor>(const at::Tensor& stored)> split;
  std::function<at::Tensor(const std::vector<at::Tensor>& canonical)> join;
};

Layout plain();                                       // one tensor, as it is
Layout transposed();                                  // one matrix, stored [in, out]
Layout stacked(std::vector<int64_t> rows);            // several, on top of each other: [q; k; v]
Layout stacked_transposed(std::vector<int64_t> rows); // the same, stored [in, out] (GPT-2)

struct Binding {
  std::string stored;                  // the family's name, without the base prefix's variants
  std::vector<std::string> canonical;  // our names, in the order the layout takes them
  Layout layout = plain();
};

struct Family {
  std::string_view model_type;
  // Checkpoints of the bare model leave this prefix out ("transformer." in GPT-2): both spellings load.
  std::string_view base_prefix;
  // Reads config.json; every problem goes into the Config, which throws them all at once.
  Architecture (*read_config)(Config& config);
  // The config.json of an Architecture. InputError listing all that the family cannot express.
  nlohmann::ordered_json (*write_config)(const Architecture& architecture);
  // Every tensor of ours, and where the family keeps it.
  std::vector<Binding> (*bindings)(const Architecture& architecture);
  // Globs of stored tensors that are no weights (masks, inverse frequencies), and may be there or not.
  std::vector<std::string_view> ignored;
};

const std::vector<const Family*>& families();
const Family* find_family(std::string_view model_type);

}  // namespace pare
