// What rows may differ by: no row can lift what the others may.
#include "pare/verify/judge.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

using namespace pare;

namespace {

Rows rows_of(const at::Tensor& error, const at::Tensor& kl) {
  Rows rows;
  rows.error = error;
  rows.size = at::ones_like(error);
  rows.kl = kl;
  rows.regret = at::zeros_like(error);
  rows.agrees = at::ones_like(error);
  return rows;
}

Rows constant_rows(int64_t count, double error, double kl) {
  return rows_of(at::full({count}, error, at::kDouble), at::full({count}, kl, at::kDouble));
}

}  // namespace

TEST_CASE("equivalent: 1e-12, a hundred times the noise of float64, times what a basis costs, and never above 1e-6") {
  const auto limit = [](double noise, double to_float64, double condition) {
    return equivalence(constant_rows(3, noise, 0), {.to_float64 = to_float64, .condition = condition})
        .error[1]
        .item<double>();
  };
  CHECK(limit(0, 1, 0) == 1e-12);
  CHECK(limit(5e-12, 1, 0) == doctest::Approx(5e-10));
  CHECK(limit(1e-3, 1e-9, 0) == doctest::Approx(1e-10));
  CHECK(limit(1e-14, 1, 1e4) == doctest::Approx(1e-8));
  CHECK(limit(1, 1, 1e12) == 1e-6);
  CHECK(equivalence(constant_rows(3, 0, 0), {.predicted = 1e-11}).error[0].item<double>() == doctest::Approx(1e-9));
}

TEST_CASE("noise: one row with any noise lifts its own limit and no other") {
  at::Tensor noise = at::full({1000}, 1e-3, at::kDouble);
  noise[7] = 1000;
  const Allowed allowed = noise_limit(rows_of(noise, noise.square()), Against::own_noise);
  CHECK(allowed.error[7].item<double>() == 2000);
  CHECK(allowed.error[8].item<double>() == doctest::Approx(2e-3));
  CHECK(allowed.root_kl[8].item<double>() == doctest::Approx(2e-3 * std::sqrt(2)));  // what such errors can do
  const at::Tensor beyond = excess(constant_rows(1000, 1, 1), allowed);
  CHECK(beyond[7].item<double>() < 1);
  CHECK((beyond > 1).sum().item<int64_t>() == 999);
  CHECK(largest(excess(constant_rows(1000, 1.9e-3, 1e-6), allowed)) < 1);
}

TEST_CASE("KL and first choice count beside the error") {
  const Allowed allowed = noise_limit(constant_rows(40, 1e-3, 1e-6), Against::own_noise);
  CHECK(largest(excess(constant_rows(40, 1e-3, 1e-6), allowed)) < 1);
  CHECK(largest(excess(constant_rows(40, 1e-3, 1e-5), allowed)) > 1);
  Rows other = constant_rows(40, 1e-3, 1e-6);
  other.regret[3] = 3e-3;  // a tie may go either way
  CHECK(largest(excess(other, allowed)) < 1);
  other.regret[3] = 5e-3;
  CHECK(largest(excess(other, allowed)) > 1);
}

TEST_CASE("what is not a number is too much, and no noise is no excuse") {
  Rows broken = constant_rows(3, 1e-3, 1e-6);
  broken.error[1] = std::numeric_limits<double>::quiet_NaN();
  CHECK(largest(excess(broken, noise_limit(constant_rows(3, 1e-3, 1e-6), Against::own_noise))) > 1);
  CHECK(largest(excess(constant_rows(3, 1e-3, 0), noise_limit(broken, Against::own_noise))) <
        1);  // the row's neighbours have a noise
  CHECK(largest(excess(constant_rows(3, 1e-30, 0), noise_limit(constant_rows(3, 0, 0), Against::own_noise))) > 1);
  CHECK(largest(excess(constant_rows(3, 0, 0), noise_limit(constant_rows(3, 0, 0), Against::own_noise))) == 0);
  const Rows all_broken = constant_rows(3, std::numeric_limits<double>::quiet_NaN(), 0);
  CHECK(largest(excess(constant_rows(3, 1e-3, 0), noise_limit(all_broken, Against::own_noise))) > 1);
}

TEST_CASE("where every tensor is explained, any row's noise counts, and what is usual among them") {
  at::Tensor noise = at::full({1000}, 1e-3, at::kDouble);
  noise[7] = 1;
  const Rows floor = rows_of(noise, noise.square());
  CHECK(largest(excess(constant_rows(1000, 5, 1), noise_limit(floor, Against::any_noise))) < 1);
  CHECK(usual_rows(constant_rows(1000, 5, 1), floor).excess > 1000);
  CHECK(equivalence(floor, {.to_float64 = 1e-9, .against = Against::any_noise}).error[0].item<double>() ==
        doctest::Approx(1e-7));
}

TEST_CASE("also the usual row, and nine of ten, have to be within twice that of the noise") {
  const at::Tensor noise = at::arange(100, at::kDouble) / 100 + 0.5;
  const Rows floor = rows_of(noise, noise.square());
  CHECK(usual_rows(rows_of(1.9 * noise, noise.square()), floor).excess < 1);
  CHECK(usual_rows(rows_of(2.1 * noise, noise.square()), floor).excess > 1);
  CHECK(usual_rows(rows_of(noise, 5 * noise.square()), floor).excess > 1);
  at::Tensor few = noise.clone();
  few.narrow(0, 85, 15).mul_(3);
  CHECK(usual_rows(rows_of(few, noise.square()), floor).excess > 1);
  CHECK(usual_rows(constant_rows(3, 1.9, 0), constant_rows(3, 1, 0)).excess < 1);
  CHECK(usual_rows(constant_rows(3, 2.1, 0), constant_rows(3, 1, 0)).excess > 1);
}
