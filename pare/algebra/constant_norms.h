#pragma once
// Norms whose epsilon dwarfs what they are given: what is left of them is a constant map.

#include <map>

#include "pare/arch/tensor_id.h"
#include "pare/checkpoint/model.h"

namespace pare {

// What fold_constant_norm expects of a norm first of all, in words: one that fails it does something.
constexpr const char* dwarfing_epsilon = "an epsilon that dwarfs the variance";
// And of a scale, which holds for each.
constexpr const char* scale_as_map = "a norm that is an affine map";

struct EpsilonShare {
  double most = 0;       // v / 2ε: how far the variance v moves the norm's output, of itself
  bool for_all = false;  // bounded for all inputs, and not measured on some
};

// Of each norm whose epsilon is above 1; a smaller one is there against a division by zero. By a bound from the weights
// where that is within `limit`, else measured on sampled inputs: of norms before a sublayer and of the last one, whose
// inputs are the stream itself. Without weights nobody knows, and the share is taken to be nothing.
std::map<ModuleId, EpsilonShare> epsilon_shares(const Model& model, double limit);

}  // namespace pare
