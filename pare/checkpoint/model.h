#pragma once
// A model: what it is, and how to get each of its tensors. Nothing is held; what runs it is an Executor.

#include <map>
#include <string>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/weights.h"

namespace pare {

struct Model {
  Architecture architecture;
  Weights weights;  // under canonical names; empty where only the structure is known
  // How many times as much a rounding of a tensor moves the answer as of those that are not in here: what changed the
  // basis that it lies in says so.
  std::map<std::string, double> amplified = {};
  bool has_weights() const { return !weights.empty(); }
};

}  // namespace pare
