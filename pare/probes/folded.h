#pragma once
// A model's numbers with all that can stand in two places in one of them, so that two models can be compared.

#include <ATen/core/Tensor.h>

#include <map>

#include "pare/arch/tensor_id.h"
#include "pare/checkpoint/model.h"

namespace pare {

using Numbers = std::map<TensorId, at::Tensor>;

// Every tensor in float64. Gains and biases of norms are in what reads them wherever that is all they do, a value's
// bias is in the output's, and a key's bias that softmax ignores is gone. Biases go only where there is one already.
Numbers folded_numbers(const Model& model, at::Device device);

}  // namespace pare
