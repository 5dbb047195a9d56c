#pragma once
// Every norm of a model, by the name that its tensors have. Those of queries and keys are inside a sublayer, and not
// among them.

#include <optional>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/arch/tensor_id.h"

namespace pare {

struct PlacedNorm {
  ModuleId module;
  Norm* norm = nullptr;  // in the architecture itself
};

std::vector<PlacedNorm> norms_of(Architecture& architecture);

// The place of one of these norms, where there may be none.
std::optional<Norm>& norm_place(Architecture& architecture, const ModuleId& module);

}  // namespace pare
