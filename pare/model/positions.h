#pragma once
// Where the tokens of a batch stand.

#include <ATen/core/Tensor.h>

#include "pare/arch/architecture.h"
#include "pare/model/cache.h"
#include "pare/model/executor.h"

namespace pare {

// Real tokens counted from 0, after those remembered: padding changes no answer. Tokens that are `pad` stand at -1.
// int64 [batch or 1, tokens], with `options`. InputError where learned positions end before the tokens do.
at::Tensor positions_for(const Architecture& architecture, const Inputs& inputs, const at::TensorOptions& options,
                         const Cache* cache);

}  // namespace pare
