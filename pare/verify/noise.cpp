#include "pare/verify/noise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <optional>

#include "pare/support/mixed_bits.h"

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

Model Rounding::moved(const Model& model, uint64_t seed, std::optional<Dtype> dtype) const {
  Model result = model;
  for (auto& [name, weight] : result.weights) {
    ++seed;
    if (is_float(weight)) {
      weight = pare::moved(weight, {seed}, usual_rounding * unit_roundoff(dtype.value_or(dtype_of(name))));
    }
  }
  return result;
}

static uint64_t mixed(uint64_t x) {
  return mixed_bits(x + golden_bits);
}

at::Tensor moved(const at::Tensor& rows, int64_t first_row, const Movement& movement, double fraction) {
  at::Tensor values = rows.to(at::kDouble).clone(at::MemoryFormat::Contiguous);
  const int64_t row_elements = values.dim() == 0 || values.size(0) == 0 ? 1 : values.numel() / values.size(0);
  const int64_t first_element = first_row * row_elements;
  double* const numbers = values.data_ptr<double>();
  at::parallel_for(0, values.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    uint64_t bits = 0;  // of 64 elements
    for (int64_t i = begin; i < end; ++i) {
      const auto element = static_cast<uint64_t>(first_element + i);
      if (i == begin || element % 64 == 0) {
        bits = mixed(movement.seed ^ mixed(element / 64));
      }
      const double size = movement.from_zero > 0 ? movement.from_zero : numbers[i];
      numbers[i] += (bits >> (element % 64) & 1 ? fraction : -fraction) * size;
    }
  });
  return values;
}

Weight moved(const Weight& original, const Movement& movement, double fraction) {
  Weight::LoadRows some = [=](int64_t begin, int64_t count) {
    return moved(original.load_rows(begin, count), begin, movement, fraction);
  };
  return Weight::leaf(
      original.formula(), Dtype::f64, original.shape(), [=] { return moved(original.load(), 0, movement, fraction); },
      original.can_load_rows() ? some : nullptr);
}

}  // namespace pare
