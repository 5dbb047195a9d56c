// The metrics against numbers that numpy computed from the definitions, and against themselves in slices.
#include "pare/verify/metrics.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace pare;

namespace {

at::Tensor reference() {
  return at::tensor({1.0, 2.0, -0.5, 0.25, 3.0, 0.0, 0.5, 1.5, -2.0, 1.0, 4.0, -1.0, 2.0, 2.5, 0.5}, at::kDouble)
      .view({3, 5});
}

at::Tensor candidate() {
  return at::tensor({1.1, 1.9, -0.4, 0.25, 3.2, 0.0, 0.5, 0.9, -2.0, 1.0, -3.0, 1.0, 2.0, 2.75, 0.5}, at::kDouble)
      .view({3, 5});
}

at::Tensor targets() {
  return at::tensor({4, 2, -1}, at::kLong);
}

Rows in_slices(const at::Tensor& r, const at::Tensor& c, const at::Tensor& next, int64_t step) {
  LogitRows rows(scales_of(r, true), next);
  for (int64_t begin = 0; begin < r.size(1); begin += step) {
    const int64_t count = std::min(step, r.size(1) - begin);
    rows.add(r.narrow(1, begin, count), c.narrow(1, begin, count), begin);
  }
  return rows.finish();
}

Metrics metrics_in_slices(const at::Tensor& r, const at::Tensor& c, const at::Tensor& next, int64_t step) {
  return metrics_of({in_slices(r, c, next, step), std::nullopt});
}

}  // namespace

// l = log_softmax: kl = (exp(l(r)) * (l(r) - l(c))).sum(1), nll = -l[row, target]. With m = median(r, 1) and
// s = 6 median(abs(r - m), 1), error = (abs(r - c) / max(s, abs(r - m), abs(r) / 1024)).max(1). Row 2 has no next
// token.
TEST_CASE("every metric as its definition says, in slices of any width") {
  for (int64_t step = 1; step <= 5; ++step) {
    CAPTURE(step);
    const Metrics m = metrics_in_slices(reference(), candidate(), targets(), step);
    CHECK(m.max_relative_logit_error == doctest::Approx(7.0 / 9).epsilon(1e-14));
    CHECK(*m.mean_kl_nats == doctest::Approx(1.3321783769919338).epsilon(1e-13));
    CHECK(*m.max_kl_nats == doctest::Approx(3.9459756420560734).epsilon(1e-13));
    CHECK(*m.top1_agreement == doctest::Approx(1.0 / 3).epsilon(1e-14));
    const Rows rows = in_slices(reference(), candidate(), targets(), step);
    CHECK(at::allclose(rows.error, at::tensor({0.2 / 6, 0.6 / 3, 7.0 / 9}, at::kDouble), 1e-14));
    CHECK(at::allclose(rows.regret, at::tensor({0.0, 0.5, 1.5}, at::kDouble), 1e-14));
    CHECK(at::allclose(rows.size, at::tensor({6.0, 3.0, 9.0}, at::kDouble), 1e-14));
    CHECK(*m.reference_nll_nats == doctest::Approx(0.6346631438355681).epsilon(1e-14));
    CHECK(*m.candidate_nll_nats == doctest::Approx(0.7815473342669588).epsilon(1e-14));
  }
}

TEST_CASE("KL is of a row, summed over the vocabulary, and averaged over rows") {
  const Metrics once = metrics_in_slices(reference().narrow(0, 1, 1), candidate().narrow(0, 1, 1), {}, 5);
  CHECK(*once.mean_kl_nats == doctest::Approx(0.043017850333118106).epsilon(1e-13));
  CHECK(*once.max_kl_nats == *once.mean_kl_nats);
  CHECK_FALSE(once.reference_nll_nats);  // nothing is predicted
}

// Two rows of three are constant, as where every unit is dead. What is usual is the third's 6 median(1, 0, 1) = 6.
TEST_CASE("a row without spread is measured by those that have one, also where most have none") {
  const at::Tensor r = at::tensor({0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0}, at::kDouble).view({3, 3});
  at::Tensor c = r.clone();
  c[0][1] = 0.001;
  CHECK(in_slices(r, c, {}, 3).error[0].item<double>() == doctest::Approx(0.001 / (6.0 / 64)).epsilon(1e-14));
}

TEST_CASE("equal logits differ by nothing at all") {
  const Metrics m = metrics_in_slices(reference(), reference(), targets(), 2);
  CHECK(m.max_relative_logit_error == 0);
  CHECK(*m.mean_kl_nats == 0);
  CHECK(*m.top1_agreement == 1);
  const at::Tensor constant = at::full({2, 3}, 7.0, at::kDouble);  // no spread, no difference: not a division by zero
  CHECK(metrics_in_slices(constant, constant, {}, 3).max_relative_logit_error == 0);
}

// The variance of d under the softmax, halved: 4.54353e-19, computed in long double. The logits themselves have
// digits to 1e-16 only.
TEST_CASE("a KL far below the rounding of the logits keeps its digits") {
  const at::Tensor d = at::tensor({1e-9, -2e-9, 3e-9, 0.0, -1e-9}, at::kDouble).unsqueeze(0);
  const at::Tensor r = reference().narrow(0, 0, 1);
  CHECK(*metrics_in_slices(r, r - d, {}, 2).mean_kl_nats / 4.543530306043e-19 == doctest::Approx(1).epsilon(1e-5));
}

TEST_CASE("very different logits overflow nowhere") {
  const at::Tensor r = at::tensor({800.0, 0.0}, at::kDouble).unsqueeze(0);
  CHECK(*metrics_in_slices(r, -r, {}, 1).mean_kl_nats == doctest::Approx(800).epsilon(1e-12));
}

TEST_CASE("what is not a number is never small") {
  at::Tensor broken = candidate().clone();
  broken[1][3].fill_(std::numeric_limits<double>::quiet_NaN());
  for (int64_t step = 1; step <= 5; ++step) {
    const Metrics m = metrics_in_slices(reference(), broken, targets(), step);
    CHECK_FALSE(m.max_relative_logit_error <= 1e300);
    CHECK_FALSE(*m.mean_kl_nats <= 1e300);
  }
}

TEST_CASE("pooled rows have a scale of their own") {
  const at::Tensor hidden = reference() * 1000, pooled = reference();
  const Metrics m = metrics_of({compare_rows(hidden, hidden), compare_rows(pooled, candidate())});
  CHECK(m.max_relative_logit_error == doctest::Approx(7.0 / 12).epsilon(1e-14));  // over 6 median(abs(r))
  CHECK_FALSE(m.mean_kl_nats);
}

TEST_CASE("a single value is measured by its own size") {
  const at::Tensor r = at::tensor({4.0, -1.0}, at::kDouble).unsqueeze(1),
                   c = at::tensor({4.0, -1.5}, at::kDouble).unsqueeze(1);
  CHECK(metrics_of({compare_rows(r, c), std::nullopt}).max_relative_logit_error == 0.5 / 6);
}

TEST_CASE("one huge row, one huge column and what all have in common hide nothing") {
  const at::Tensor r = reference();
  at::Tensor c = candidate().clone(), huge = r.clone();
  huge[2].mul_(1e13);
  c[2] = huge[2];
  CHECK(in_slices(huge, c, {}, 5).error[1].item<double>() == doctest::Approx(0.2).epsilon(1e-12));

  const at::Tensor padded = at::cat({r, at::full({3, 2}, -1e13, at::kDouble)}, 1);
  const at::Tensor moved = at::cat({candidate(), at::full({3, 2}, -1e13 - 1, at::kDouble)}, 1);
  CHECK(largest(in_slices(padded, moved, {}, 7).error) > 0.1);
  CHECK(largest(in_slices(padded, at::cat({r, at::full({3, 2}, -1e13 - 1, at::kDouble)}, 1), {}, 7).error) < 2e-13);

  // 1e-11 is what float64 makes of 1e5 in a sum; a thousandth of a logit is not.
  CHECK(largest(in_slices(r + 1e5, r + 1e5 + 1e-11, {}, 5).error) < 1e-12);
  CHECK(largest(in_slices(r + 1e5, r + 1e5 + 1e-3, {}, 5).error) > 1e-6);
}

TEST_CASE("a row with little spread is not measured by its own accidents") {
  at::Tensor r = reference().clone();
  r[0] = at::full({5}, 1e-12, at::kDouble);
  CHECK(in_slices(r, r + 1e-12, {}, 5).error[0].item<double>() == doctest::Approx(1e-12 * 64 / 3).epsilon(1e-3));
}
