#include "pare/verify/noise.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>

#include "pare/verify/moved_weight.h"

namespace pare {

namespace {

// A rounding lies anywhere between -u and u: this is its root mean square.
const double usual_rounding = 1 / std::sqrt(3);

bool is_float(const Weight& weight) {
  return at::isFloatingType(scalar_type(weight.dtype()));
}

Dtype finest_of(const Weights& weights) {
  std::optional<Dtype> found;
  for (const auto& [name, weight] : weights) {
    if (is_float(weight) && (!found || unit_roundoff(weight.dtype()) < unit_roundoff(*found))) {
      found = weight.dtype();
    }
  }
  return found.value_or(Dtype::f64);
}

}  // namespace

Dtype Rounding::dtype_of(const std::string& tensor) const {
  if (same_.contains(tensor)) {
    return Dtype::f64;
  }
  const auto kept = stored_.find(tensor);
  return kept != stored_.end() && is_float(kept->second) ? kept->second.dtype() : finest_of(stored_);
}

Dtype Rounding::coarsest(const Weights& weights) const {
  Dtype found = Dtype::f64;
  for (const auto& [name, weight] : weights) {
    const Dtype dtype = dtype_of(name);
    if (is_float(weight) && unit_roundoff(dtype) > unit_roundoff(found)) {
      found = dtype;
    }
  }
  return found;
}

Dtype Rounding::finest(const Weights& weights) const {
  std::optional<Dtype> found;
  for (const auto& [name, weight] : weights) {
    const Dtype dtype = dtype_of(name);
    if (is_float(weight) && !same_.contains(name) && (!found || unit_roundoff(dtype) < unit_roundoff(*found))) {
      found = dtype;
    }
  }
  return found.value_or(Dtype::f64);
}

Model Rounding::moved(const Model& model, uint64_t seed) const {
  Model result = model;
  for (auto& [name, weight] : result.weights) {
    ++seed;
    if (is_float(weight)) {
      weight = pare::moved(weight, {seed}, usual_rounding * unit_roundoff(dtype_of(name)));
    }
  }
  return result;
}

}  // namespace pare
