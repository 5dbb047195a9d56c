#pragma once
// What is measured of paper 4's position gates (PG-OP), which follow positions, it says, where heads are directional.

#include <ATen/core/Tensor.h>

#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/claims/trained_claims.h"
#include "pare/model/inputs.h"

namespace pare {

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
// Pearson's r of heads beside others of their own layer and run, with its interval of 95 %.
struct CorrelationWithin {
  double r = 0, least = -1, most = 1;
  int64_t heads = 0;
  bool is_defined = false;
};
CorrelationWithin correlation_within(const std::vector<GatedHeads>& layers);

}  // namespace pare
