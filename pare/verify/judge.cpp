#include "pare/verify/judge.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pare/checkpoint/dtype.h"

namespace pare {

namespace {

constexpr double least_error = 1e-12, most_error = 1e-6, most_proved_error = 1e-5;
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

at::Tensor floor_of(const at::Tensor& noise, Against against) {
  const at::Tensor known = at::nan_to_num(noise, 0, 0);
  return known.clamp_min(against == Against::any_noise ? largest(known) : robust_most(noise));
}

// What an error that is allowed can do to the odds of two columns.
at::Tensor root_kl_of(const at::Tensor& error, const Rows& noise) {
  return std::sqrt(2) * error * noise.size;
}

// What is not a number is beyond all others.
double nth_share(const at::Tensor& values, double share) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const at::Tensor sorted = std::get<0>(at::nan_to_num(values, infinite, infinite).sort());
  return sorted[static_cast<int64_t>(share * static_cast<double>(values.numel() - 1))].item<double>();
}

double over(double value, double limit) {
  return value == 0 ? 0 : value / limit;
}

}  // namespace

Allowed equivalence(const Rows& noise, const Standard& standard) {
  const bool proved = standard.against == Against::any_noise;
  const double predicted = standard.predicted / unit_roundoff(Dtype::f64);
  const double roundings = std::max({100.0, 100 * standard.condition, 10 * predicted});
  const double times = std::max(roundings * standard.to_float64, proved ? standard.condition : 0);
  const double least = std::max(least_error, 100 * standard.predicted);
  Allowed allowed;
  allowed.error = (times * floor_of(noise.error, standard.against))
                      .clamp_min(least)
                      .clamp_max(proved ? most_proved_error : most_error);
  if (noise.kl.defined()) {
    allowed.root_kl = root_kl_of(allowed.error, noise).clamp_min(least_error);
  }
  return allowed;
}

std::string equivalence_words(const Standard& standard) {
  const double predicted = standard.predicted / unit_roundoff(Dtype::f64);
  const double roundings = std::max({100.0, 100 * standard.condition, 10 * predicted});
  if (standard.against == Against::any_noise && standard.condition > roundings * standard.to_float64) {
    return fmt::format("what bases of condition {:.2g} make of one rounding, at most {:.0e}", standard.condition,
                       most_proved_error);
  }
  return roundings > 100 * std::max(1.0, standard.condition) ? "ten times what was predicted, in roundings of float64"
         : standard.condition > 1
             ? fmt::format("100 roundings of float64, in bases of condition {:.2g}", standard.condition)
             : "100 roundings of float64";
}

std::string noise_words(Against against) {
  return against == Against::any_noise ? "ten times the largest noise of any row, since every tensor is explained"
                                       : "twice the noise of that row, or of the usual one";
}

Allowed noise_limit(const Rows& noise, Against against) {
  const double times = against == Against::any_noise ? 10 : 2;
  Allowed allowed;
  allowed.error = times * floor_of(noise.error, against);
  if (noise.kl.defined()) {
    allowed.root_kl = at::maximum(times * floor_of(noise.kl.sqrt(), against), root_kl_of(allowed.error, noise));
    allowed.root_kl = allowed.root_kl.clamp_min(least_root_kl);
  }
  return allowed;
}

at::Tensor excess(const Rows& rows, const Allowed& allowed) {
  const auto over_limit = [](const at::Tensor& value, const at::Tensor& limit) {
    return at::where(value == 0, 0.0, value / limit);
  };
  at::Tensor worst = over_limit(rows.error, allowed.error);
  if (rows.kl.defined()) {
    worst = at::maximum(worst, over_limit(rows.kl.sqrt(), allowed.root_kl));
    worst = at::maximum(worst, over_limit(rows.regret, 2 * allowed.error * rows.size));
  }
  return at::nan_to_num(worst, std::numeric_limits<double>::infinity());
}

UsualRows usual_rows(const Rows& rows, const Rows& noise) {
  const auto further = [](const UsualRows& a, const UsualRows& b) { return b.excess > a.excess ? b : a; };
  const auto share_of = [](const at::Tensor& values, double share, double limit) {
    const double value = nth_share(values, share);
    return UsualRows{.excess = over(value, limit), .error = value, .allowed = limit};
  };
  const auto beyond = [&](const at::Tensor& values, const at::Tensor& floor, double least) {
    if (values.numel() < enough_rows) {  // too few to have a usual one
      return share_of(values, 0.5, std::max(least, 2 * largest(floor)));
    }
    const auto held = [&](double share) {
      return share_of(values, share, std::max(least, 2 * nth_share(floor, share)));
    };
    return further(held(0.5), held(0.9));
  };
  UsualRows usual = beyond(rows.error, noise.error, 0);
  const double by_kl = rows.kl.defined() ? beyond(rows.kl.sqrt(), noise.kl.sqrt(), least_root_kl).excess : 0;
  const bool unknown = std::isnan(usual.excess) || std::isnan(by_kl);
  usual.by_error = !(by_kl > usual.excess);
  usual.excess = unknown ? std::numeric_limits<double>::infinity() : std::max(usual.excess, by_kl);
  return usual;
}

}  // namespace pare
