#pragma once
// What is computed of single claims that train, and tested by itself.

#include <ATen/core/Tensor.h>

#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/claims/judged.h"
#include "pare/model/inputs.h"

namespace pare {

// mlp-basis-transfer: relative errors of what was fitted, at each width, as the rows that decide it.
struct FittedErrors {
  std::vector<double> trained, linear;
};
std::vector<ClaimRow> rows_of_errors(ClaimScale scale, const FittedErrors& errors);

// pgop: position gates follow positions, the paper says, where heads are directional.
// The derivative of the sinusoidal encoding by the position, at 0, 1, ...: [tokens, width] in float64.
at::Tensor sinusoidal_slopes(int64_t tokens, int64_t width);

// Of each layer: the asymmetry of each head, the mean of its gate, and the mean of |∂g/∂i|, the token's own content
// held still, over all tokens of the inputs.
nlohmann::ordered_json gates_of(const Model& model, const Inputs& inputs);

// How the heads of a layer go together with their gates.
struct GatedHeads {
  std::vector<double> asymmetry;    // ‖M_a‖/‖M‖ of M = W_Q W_Kᵀ
  std::vector<double> sensitivity;  // mean of |∂g/∂i|
};
// Pearson's r of heads beside others of their own layer and run; without an interval where it is not defined.
Estimate correlation_within(const std::vector<GatedHeads>& layers);

}  // namespace pare
