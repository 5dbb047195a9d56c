#pragma once
// A model: what it is, and how to get each of its tensors. Nothing is held; what runs it is an Executor.

#include "pare/arch/architecture.h"
#include "pare/checkpoint/weights.h"

namespace pare {

struct Model {
  Architecture architecture;
  Weights weights;  // under canonical names; empty where only the structure is known
  bool has_weights() const { return !weights.empty(); }
};

}  // namespace pare
