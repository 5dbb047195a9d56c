#pragma once
// The MLP sublayer: plain, gated, or as neuron heads (attention over {self, one extra token}).

#include <ATen/core/Tensor.h>

#include <string>

#include "pare/arch/architecture.h"
#include "pare/model/loader.h"
#include "pare/model/step.h"

namespace pare {

struct MlpLayer {
  Mlp spec;
  Linear gate_up;         // gate and up in one product
  Linear up, gate, down;  // of neuron heads: up is the query, gate the value, down the output
};

MlpLayer load_mlp(Loader& loader, const Mlp& spec, const std::string& name);  // name: "blocks.N.mlp."
at::Tensor run_mlp(const MlpLayer& layer, const at::Tensor& x, Step& step, const std::string& prefix);

}  // namespace pare
