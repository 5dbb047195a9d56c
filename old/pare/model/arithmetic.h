#pragma once
// Where and in which arithmetic a model runs.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace pare {

struct Arithmetic {
  at::ScalarType dtype = at::kDouble;
  at::Device device = at::kCPU;
};

}  // namespace pare
