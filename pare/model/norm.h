#pragma once
// RMSNorm, LayerNorm and DyT over the last dimension.

#include <ATen/core/Tensor.h>

#include <optional>

#include "pare/arch/architecture.h"
#include "pare/model/loader.h"

namespace pare {

struct NormLayer {
  Norm spec;
  Parameter gain;  // with its offset added
  at::Tensor bias, alpha;
  std::optional<NormBlend> blend = {};  // what it is mixed with, on its way out
  at::Tensor operator()(const at::Tensor& x) const;
};

// `of_each_head`: gains [heads, width], for what is [batch, heads, tokens, width].
std::optional<NormLayer> load_norm(Loader& loader, const std::optional<Norm>& spec, const ModuleId& module,
                                   bool of_each_head = false);

// The identity where there is no norm.
at::Tensor normalised(const std::optional<NormLayer>& norm, const at::Tensor& x);

}  // namespace pare
