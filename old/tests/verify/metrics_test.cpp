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

Metrics in_slices(const at::Tensor& r, const at::Tensor& c, const at::Tensor& next, int64_t step) {
  LogitRows rows(next);
  for (int64_t begin = 0; begin < r.size(1); begin += step) {
    const int64_t count = std::min(step, r.size(1) - begin);
    rows.add(r.narrow(1, begin, count), c.narrow(1, begin, count), begin);
  }
  return metrics_of({rows.finish(), std::nullopt});
}

}  // namespace

// l = log_softmax: kl = (exp(l(r)) * (l(r) - l(c))).sum(1), nll = -l[row, target], error = abs(r - c).max() /
// abs(r - r.mean(1)).max(). Row 2 has no next token.
TEST_CASE("every metric as its definition says, in slices of any width") {
  for (int64_t step = 1; step <= 5; ++step) {
    CAPTURE(step);
    const Metrics m = in_slices(reference(), candidate(), targets(), step);
    CHECK(m.max_relative_logit_error == doctest::Approx(2.692307692307692).epsilon(1e-14));
    CHECK(*m.mean_kl_nats == doctest::Approx(1.3321783769919338).epsilon(1e-13));
    CHECK(*m.max_kl_nats == doctest::Approx(3.9459756420560734).epsilon(1e-13));
    CHECK(*m.top1_agreement == doctest::Approx(1.0 / 3).epsilon(1e-14));
    CHECK(*m.reference_nll_nats == doctest::Approx(0.6346631438355681).epsilon(1e-14));
    CHECK(*m.candidate_nll_nats == doctest::Approx(0.7815473342669588).epsilon(1e-14));
  }
}

TEST_CASE("KL is of a row, summed over the vocabulary, and averaged over rows") {
  const Metrics once = in_slices(reference().narrow(0, 1, 1), candidate().narrow(0, 1, 1), {}, 5);
  CHECK(*once.mean_kl_nats == doctest::Approx(0.043017850333118106).epsilon(1e-13));
  CHECK(*once.max_kl_nats == *once.mean_kl_nats);
  CHECK_FALSE(once.reference_nll_nats);  // nothing is predicted
}

TEST_CASE("equal logits differ by nothing at all") {
  const Metrics m = in_slices(reference(), reference(), targets(), 2);
  CHECK(m.max_relative_logit_error == 0);
  CHECK(*m.mean_kl_nats == 0);
  CHECK(*m.top1_agreement == 1);
  const at::Tensor constant = at::full({2, 3}, 7.0, at::kDouble);  // no spread, no difference: not a division by zero
  CHECK(in_slices(constant, constant, {}, 3).max_relative_logit_error == 0);
}

// The variance of d under the softmax, halved: 4.54353e-19, computed in long double. The logits themselves have
// digits to 1e-16 only.
TEST_CASE("a KL far below the rounding of the logits keeps its digits") {
  const at::Tensor d = at::tensor({1e-9, -2e-9, 3e-9, 0.0, -1e-9}, at::kDouble).unsqueeze(0);
  const at::Tensor r = reference().narrow(0, 0, 1);
  CHECK(*in_slices(r, r - d, {}, 2).mean_kl_nats / 4.543530306043e-19 == doctest::Approx(1).epsilon(1e-5));
}

TEST_CASE("very different logits overflow nowhere") {
  const at::Tensor r = at::tensor({800.0, 0.0}, at::kDouble).unsqueeze(0);
  CHECK(*in_slices(r, -r, {}, 1).mean_kl_nats == doctest::Approx(800).epsilon(1e-12));
}

TEST_CASE("what is not a number is never small") {
  at::Tensor broken = candidate().clone();
  broken[1][3].fill_(std::numeric_limits<double>::quiet_NaN());
  for (int64_t step = 1; step <= 5; ++step) {
    const Metrics m = in_slices(reference(), broken, targets(), step);
    CHECK_FALSE(m.max_relative_logit_error <= 1e300);
    CHECK_FALSE(*m.mean_kl_nats <= 1e300);
  }
}

TEST_CASE("pooled rows have a scale of their own") {
  const at::Tensor hidden = reference() * 1000, pooled = reference();
  const Metrics m = metrics_of({compare_rows(hidden, hidden), compare_rows(pooled, candidate())});
  CHECK(m.max_relative_logit_error == doctest::Approx(2.692307692307692).epsilon(1e-14));
  CHECK_FALSE(m.mean_kl_nats);
}

TEST_CASE("a single value is measured by its own size") {
  const at::Tensor r = at::tensor({4.0, -1.0}, at::kDouble).unsqueeze(1),
                   c = at::tensor({4.0, -1.5}, at::kDouble).unsqueeze(1);
  CHECK(metrics_of({compare_rows(r, c), std::nullopt}).max_relative_logit_error == 0.125);
}
