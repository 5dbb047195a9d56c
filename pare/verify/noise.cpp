#include "pare/verify/noise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <optional>

namespace pare {

namespace {

bool is_float(const Weight& weight) {
  return at::isFloatingType(scalar_type(weight.dtype()));
}

Dtype finest(const Weights& weights) {
  std::optional<Dtype> found;
  for (const auto& [name, weight] : weights) {
    if (is_float(weight) && (!found || unit_roundoff(weight.dtype()) < unit_roundoff(*found))) {
      found = weight.dtype();
    }
  }
  return found.value_or(Dtype::f64);
}

// The finaliser of splitmix64 (Steele, Lea and Flood 2014): 64 random bits of a number.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Signs belong to elements, so a tensor is moved alike whether it is loaded whole or in slices.
at::Tensor moved(const at::Tensor& slice, int64_t first_element, double fraction, uint64_t seed) {
  at::Tensor values = slice.to(at::kDouble).clone(at::MemoryFormat::Contiguous);
  double* const numbers = values.data_ptr<double>();
  at::parallel_for(0, values.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    uint64_t bits = 0;  // of 64 elements
    for (int64_t i = begin; i < end; ++i) {
      const auto element = static_cast<uint64_t>(first_element + i);
      if (i == begin || element % 64 == 0) {
        bits = mixed(seed ^ mixed(element / 64));
      }
      numbers[i] += (bits >> (element % 64) & 1 ? fraction : -fraction) * numbers[i];
    }
  });
  return values;
}

Weight moved_weight(const Weight& original, double fraction, uint64_t seed) {
  const int64_t columns = element_count(original.shape()) / original.shape()[0];
  Weight::LoadRows some = [=](int64_t begin, int64_t count) {
    return moved(original.load_rows(begin, count), begin * columns, fraction, seed);
  };
  return Weight::leaf(
      original.formula(), Dtype::f64, original.shape(), [=] { return moved(original.load(), 0, fraction, seed); },
      original.can_load_rows() ? some : nullptr);
}

}  // namespace

Dtype Rounding::dtype_of(const std::string& tensor) const {
  if (same_.contains(tensor)) {
    return Dtype::f64;
  }
  const auto kept = stored_.find(tensor);
  return kept != stored_.end() && is_float(kept->second) ? kept->second.dtype() : finest(stored_);
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

Model Rounding::moved(const Model& model, uint64_t seed) const {
  Model result = model;
  for (auto& [name, weight] : result.weights) {
    ++seed;
    if (is_float(weight) && element_count(weight.shape()) > 0) {  // empty: a table of no rows
      weight = moved_weight(weight, unit_roundoff(dtype_of(name)), seed);
    }
  }
  return result;
}

}  // namespace pare
