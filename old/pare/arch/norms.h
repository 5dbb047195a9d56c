#pragma once
// Every norm of a model, by the name that its tensors have. Those of queries and keys are inside a sublayer, and not
// among them.

#include <vector>

#include "pare/arch/architecture.h"
#include "pare/arch/tensor_id.h"

namespace pare {

struct PlacedNorm {
  ModuleId module;
  Norm* norm = nullptr;  // in the architecture itself
};

std::vector<PlacedNorm> norms_of(Architecture& architecture);

}  // namespace pare
