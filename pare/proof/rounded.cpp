#include "pare/proof/rounded.h"

#include <ATen/ATen.h>

#include <cmath>

namespace pare {

at::Tensor half_spacing(const at::Tensor& value, Dtype dtype) {
  constexpr int64_t exponent_bits = 0x7ff0000000000000;
  const at::Tensor power = value.view(at::kLong).bitwise_and(exponent_bits).view(at::kDouble);
  return (power * unit_roundoff(dtype)).clamp_min(smallest_rounding(dtype));
}

at::Tensor size_of(const Rounded& exact) {
  return exact.rounding / unit_roundoff(Dtype::f64);
}

Rounded scaled_columns(const Rounded& m, const Rounded& f) {
  return {m.value * f.value, m.rounding * f.value.abs() + m.value.abs() * f.rounding};
}

Rounded times_vector(const Rounded& m, const Rounded& v) {
  return {at::mv(m.value, v.value), at::mv(m.rounding, v.value.abs()) + at::mv(m.value.abs(), v.rounding)};
}

Rounded product(const Rounded& a, const Rounded& b) {
  return {at::matmul(a.value, b.value), at::matmul(a.rounding, b.value.abs()) + at::matmul(a.value.abs(), b.rounding)};
}

Rounded sum(const Rounded& a, const Rounded& b) {
  return {a.value + b.value, a.rounding + b.rounding};
}

Rounded times(const Rounded& a, double factor) {
  return {a.value * factor, a.rounding * std::abs(factor)};
}

Rounded transposed(const Rounded& m) {
  return {m.value.transpose(-1, -2), m.rounding.transpose(-1, -2)};
}

Rounded narrowed(const Rounded& a, int64_t axis, int64_t begin, int64_t count) {
  return {a.value.narrow(axis, begin, count), a.rounding.narrow(axis, begin, count)};
}

Rounded joined(const std::vector<Rounded>& parts, int64_t axis) {
  std::vector<at::Tensor> values, roundings;
  for (const Rounded& part : parts) {
    values.push_back(part.value);
    roundings.push_back(part.rounding);
  }
  return {at::cat(values, axis), at::cat(roundings, axis)};
}

Rounded reshaped(const Rounded& a, at::IntArrayRef shape) {
  return {a.value.reshape(shape), a.rounding.reshape(shape)};
}

Rounded without_mean(const Rounded& rows) {
  return {rows.value - rows.value.mean(-1, true), rows.rounding + rows.rounding.mean(-1, true)};
}

}  // namespace pare
