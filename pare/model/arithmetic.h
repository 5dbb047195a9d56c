#pragma once
// Where and in which arithmetic a model runs.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace pare {

struct Arithmetic {
  at::ScalarType dtype = at::kDouble;
  at::Device device = at::kCPU;
  std::optional<at::ScalarType> matrices = {};  // kept in this type, and widened where they are multiplied with
};

}  // namespace pare
