#pragma once
// Where training starts from: recipes over one draw by seed and name, so that variants share the values of the tensors
// that they share.

#include "pare/checkpoint/model.h"
#include "pare/model/inputs.h"
#include "pare/train/config.h"

namespace pare {

// float32, or float64 where that is asked for; `sample`: a batch that norm_free measures what blocks write on.
Model initial_model(const TrainConfig& config, const Inputs& sample);

}  // namespace pare
