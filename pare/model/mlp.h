#pragma once
// The MLP sublayer: plain, gated, or as neuron heads (attention over {self, one extra token}).

#include <ATen/core/Tensor.h>

#include <string>
#include <variant>

#include "pare/arch/architecture.h"
#include "pare/model/activation.h"
#include "pare/model/loader.h"
#include "pare/model/step.h"

namespace pare {

struct DenseMlpLayer {
  DenseMlp spec;
  Linear gate_up;  // both of a gated one, in one product
  Linear up;       // of one that is not gated
  Linear down;
  Curve curve;  // of an activation that is trained
};

struct NeuronHeadsLayer {
  NeuronHeads spec;
  Linear query, value, output;
};

using MlpLayer = std::variant<DenseMlpLayer, NeuronHeadsLayer>;

MlpLayer load_mlp(Loader& loader, const Mlp& spec, int64_t block);
const Linear& written_by(const MlpLayer& layer);  // the matrix that makes the output of what is hidden
at::Tensor run_mlp(const MlpLayer& layer, const at::Tensor& x, Step& step, const std::string& prefix);

}  // namespace pare
