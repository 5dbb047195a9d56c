#pragma once
// Where the tokens of a batch stand.

#include <ATen/core/Tensor.h>

#include <optional>

#include "pare/arch/architecture.h"

namespace pare {

struct Cache;   // cache.h
struct Inputs;  // inputs.h
class Tables;   // tables.h

struct Positions {
  at::Tensor at;  // int64 [batch or 1, tokens]
  // Where every row stands at first, first + 1, ...: so much is known without asking the device. Else absent.
  std::optional<int64_t> first;
};

// Real tokens counted from 0, after those remembered: padding changes no answer. Tokens that are `pad` stand at -1.
// InputError where learned positions end before the tokens do.
Positions positions_for(const Architecture& architecture, const Inputs& inputs, const Tables& tables,
                        const Cache* cache);

// One past the last position. Asks the device where the positions are not plainly counted, and waits for its answer.
int64_t end_of(const Positions& positions);

}  // namespace pare
