#pragma once

#include <ATen/core/Tensor.h>

#include "pare/arch/architecture.h"

namespace pare {

at::Tensor activate(Activation activation, const at::Tensor& x);

}  // namespace pare
