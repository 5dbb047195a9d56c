#pragma once
// The part of `audit` about norms that are none: their epsilon dwarfs what they are given.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/audit/passes.h"

namespace pare {

struct ConstantNorms {
  size_t all = 0, constant = 0, removed = 0;  // norms; those that do nothing; those that fold_constant_norm takes out
  std::string measured;                       // how far epsilon dwarfs the variance, in words
  int64_t saved = 0, removable = 0;           // by that pass; and by all that save, with it
  std::vector<std::string> freed;             // passes that apply only then, and save
  std::vector<std::string> reasons;           // why it is no more
  std::string command;
};

// Nothing where the pass does not apply. `model`: what the command names.
std::optional<ConstantNorms> audit_constant_norms(const PassAudit& audit, const Architecture& architecture,
                                                  const std::string& model);

std::string text_of(const ConstantNorms& norms, const PassAudit& audit);
nlohmann::ordered_json to_json(const ConstantNorms& norms);

}  // namespace pare
