#pragma once

#include <ATen/core/Tensor.h>

#include "pare/arch/architecture.h"

namespace pare {

at::Tensor activate(Activation activation, const at::Tensor& x);

// The four numbers of xIELU (arXiv 2411.13010), each a tensor of one.
struct Curve {
  at::Tensor positive, negative, slope, least;
};
at::Tensor xielu(const Curve& curve, const at::Tensor& x);

}  // namespace pare
