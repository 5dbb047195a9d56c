#include "pare/verify/judge.h"

#include <ATen/ATen.h>

#include <limits>

#include "pare/checkpoint/dtype.h"

namespace pare {

namespace {

constexpr double least_error = 1e-12, most_error = 1e-6;
constexpr double least_root_kl = 1e-9;  // a KL of 1e-18 nats is none
constexpr int64_t enough_rows = 32;

// The median and six times the median distance from it; for normally distributed numbers, four standard deviations.
double robust_most(const at::Tensor& values) {
  const at::Tensor known = values.masked_select(values.isfinite());
  if (known.numel() == 0) {
    return 0;
  }
  const at::Tensor middle = known.median();
  return (middle + 6 * (known - middle).abs().median()).item<double>();
}

at::Tensor of_row_or_usual(const at::Tensor& noise) {
  return at::nan_to_num(noise, 0, 0).clamp_min(robust_most(noise));
}

}  // namespace

Allowed equivalence(const Rows& noise, double to_float64, double condition) {
  const double of_basis = 100 * unit_roundoff(Dtype::f64) * condition;
  Allowed allowed;
  allowed.error =
      (10 * to_float64 * of_row_or_usual(noise.error)).clamp_min(std::max(least_error, of_basis)).clamp_max(most_error);
  if (noise.kl.defined()) {
    allowed.root_kl = allowed.error * noise.size.clamp_min(1);
  }
  return allowed;
}

Allowed twice(const Rows& noise) {
  Allowed allowed;
  allowed.error = 2 * of_row_or_usual(noise.error);
  if (noise.kl.defined()) {
    allowed.root_kl = (2 * of_row_or_usual(noise.kl.sqrt())).clamp_min(least_root_kl);
  }
  return allowed;
}

at::Tensor excess(const Rows& rows, const Allowed& allowed) {
  const auto over = [](const at::Tensor& value, const at::Tensor& limit) {
    return at::where(value == 0, 0.0, value / limit);
  };
  at::Tensor worst = over(rows.error, allowed.error);
  if (rows.kl.defined()) {
    worst = at::maximum(worst, over(rows.kl.sqrt(), allowed.root_kl));
    worst = at::maximum(worst, over(rows.regret, 2 * allowed.error * rows.size));
  }
  return at::nan_to_num(worst, std::numeric_limits<double>::infinity());
}

bool usually_within(const Rows& rows, const Rows& noise) {
  if (rows.error.numel() < enough_rows) {
    return true;
  }
  const auto within = [](const at::Tensor& values, const at::Tensor& floor, double least) {
    return values.median().item<double>() <= std::max(least, 2 * floor.median().item<double>());
  };
  return within(rows.error, noise.error, 0) &&
         (!rows.kl.defined() || within(rows.kl.sqrt(), noise.kl.sqrt(), least_root_kl));
}

}  // namespace pare
