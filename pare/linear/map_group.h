#pragma once
// The groups of matrices that may stand between two bases of a stream, or of a head.

#include <cstdint>
#include <utility>
#include <vector>

#include "pare/arch/rope.h"

namespace pare {

enum class MapGroup {
  identity,
  turning,  // what commutes with RoPE: a I + b J on each plane, anything on the entries that do not turn
  general,
  rotation,          // where somebody sees lengths: a norm, or a query that is the key
  turning_rotation,  // both
};

// The dimensions of a head that turn together.
std::vector<std::pair<int64_t, int64_t>> turning_planes(const Rope& rope);

}  // namespace pare
