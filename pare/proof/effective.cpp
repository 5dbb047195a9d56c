#include "pare/proof/effective.h"

#include <ATen/ATen.h>

#include <cmath>

namespace pare {

at::Tensor half_spacing(const at::Tensor& value, Dtype dtype) {
  constexpr int64_t exponent_bits = 0x7ff0000000000000;
  const at::Tensor power = value.view(at::kLong).bitwise_and(exponent_bits).view(at::kDouble);
  return (power * unit_roundoff(dtype)).clamp_min(smallest_rounding(dtype));
}

at::Tensor size_of(const Effective& exact) {
  return exact.rounding / unit_roundoff(Dtype::f64);
}

Effective scaled_columns(const Effective& m, const Effective& f) {
  return {m.value * f.value, m.rounding * f.value.abs() + m.value.abs() * f.rounding};
}

Effective times_vector(const Effective& m, const Effective& v) {
  return {at::mv(m.value, v.value), at::mv(m.rounding, v.value.abs()) + at::mv(m.value.abs(), v.rounding)};
}

Effective product(const Effective& a, const Effective& b) {
  return {at::matmul(a.value, b.value), at::matmul(a.rounding, b.value.abs()) + at::matmul(a.value.abs(), b.rounding)};
}

Effective sum(const Effective& a, const Effective& b) {
  return {a.value + b.value, a.rounding + b.rounding};
}

Effective times(const Effective& a, double factor) {
  return {a.value * factor, a.rounding * std::abs(factor)};
}

Effective transposed(const Effective& m) {
  return {m.value.transpose(-1, -2), m.rounding.transpose(-1, -2)};
}

Effective narrowed(const Effective& a, int64_t axis, int64_t begin, int64_t count) {
  return {a.value.narrow(axis, begin, count), a.rounding.narrow(axis, begin, count)};
}

Effective reshaped(const Effective& a, at::IntArrayRef shape) {
  return {a.value.reshape(shape), a.rounding.reshape(shape)};
}

Effective without_mean(const Effective& rows) {
  return {rows.value - rows.value.mean(-1, true), rows.rounding + rows.rounding.mean(-1, true)};
}

}  // namespace pare
