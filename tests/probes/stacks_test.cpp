// Ranks, gaps and hypotheses against matrices whose answer is known.

#include "pare/probes/stacks.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "pare/linear/leading_values.h"

namespace pare {

namespace {

double at_row(const at::Tensor& numbers, int64_t row) {
  return numbers[row].item<double>();
}

at::Tensor orthonormal(int64_t rows, int64_t columns) {
  return std::get<0>(at::linalg_qr(at::randn({rows, columns}, at::kDouble)));
}

// n × d with these singular values.
at::Tensor with_spectrum(const std::vector<double>& values, int64_t n, int64_t d) {
  const int64_t count = std::ssize(values);
  return at::matmul(orthonormal(n, count) * at::tensor(values, at::kDouble), orthonormal(d, count).t());
}

}  // namespace

TEST_CASE("ranks of a known spectrum, wide and tall") {
  at::manual_seed(1);
  const std::vector<double> values = {8, 4, 2, 0.009, 0.007};  // the last two around a thousandth of the first
  for (const auto& [n, d] : {std::pair<int64_t, int64_t>{6, 40}, {40, 6}, {9, 9}}) {
    const at::Tensor x = at::stack({with_spectrum(values, n, d), 1e-200 * with_spectrum({1, 1}, n, d)});
    const StackRanks found = stack_ranks(x, {});
    CHECK(at_row(found.rank, 0) == 4);
    CHECK(at_row(stack_rank(x, {}), 0) == 4);
    CHECK(at_row(stack_ranks(x, {.threshold = 1e-4}).rank, 0) == 5);
    double sum = 0, entropy = 0, squares = 0;
    for (double value : values) {
      sum += value;
      squares += value * value;
    }
    for (double value : values) {
      entropy -= value / sum * std::log(value / sum);
    }
    CHECK(at_row(found.effective_rank, 0) == doctest::Approx(std::exp(entropy)).epsilon(1e-12));
    CHECK(at_row(found.stable_rank, 0) == doctest::Approx(squares / 64).epsilon(1e-12));
    CHECK(at_row(found.spectrum[0], 1) == doctest::Approx(0.5).epsilon(1e-12));
    CHECK(at_row(found.rank, 1) == 2);  // however small
    CHECK(at_row(found.effective_rank, 1) == doctest::Approx(2).epsilon(1e-12));
  }
}

TEST_CASE("identical tokens: rank one, at no distance from it, affine rank zero") {
  at::manual_seed(2);
  for (int64_t n : {1, 2, 7, 50}) {
    const at::Tensor x = at::randn({1, 1, 12}, at::kDouble).expand({1, n, 12}).contiguous();
    const StackRanks found = stack_ranks(x, {});
    CHECK(at_row(found.rank, 0) == 1);
    CHECK(at_row(found.effective_rank, 0) == doctest::Approx(1).epsilon(1e-9));
    CHECK(at_row(found.stable_rank, 0) == doctest::Approx(1).epsilon(1e-12));
    CHECK(at_row(found.distance_to_rank_one, 0) == 0);
    CHECK(at_row(found.affine_rank, 0) == 0);
  }
}

TEST_CASE("a planted distance to rank one, and the affine rank of a shifted plane") {
  at::manual_seed(3);
  const at::Tensor mean = at::randn({1, 30}, at::kDouble);
  const at::Tensor left = at::randn({8, 3}, at::kDouble);
  const at::Tensor plane = at::matmul(left - left.mean(0, true), at::randn({3, 30}, at::kDouble));
  const StackRanks found = stack_ranks((mean + plane).unsqueeze(0), {.threshold = 1e-9});
  CHECK(at_row(found.rank, 0) == 4);
  CHECK(at_row(found.affine_rank, 0) == 3);
  const double apart = plane.norm().item<double>();
  const double whole = std::hypot(apart, std::sqrt(8.0) * mean.norm().item<double>());
  CHECK(at_row(found.distance_to_rank_one, 0) == doctest::Approx(apart / whole).epsilon(1e-12));
  // Opposite tokens have a mean of zero: as far away as can be.
  const at::Tensor opposite = at::cat({mean, -mean}).unsqueeze(0);
  CHECK(at_row(stack_ranks(opposite, {}).distance_to_rank_one, 0) == doctest::Approx(1).epsilon(1e-12));
}

TEST_CASE("zeros have a rank and no shape; what is not finite has neither, and spoils no neighbour") {
  at::manual_seed(4);
  at::Tensor x = at::randn({4, 5, 9}, at::kDouble);
  const StackRanks alone = stack_ranks(x.narrow(0, 3, 1), {});
  x[0].zero_();
  x[1][2][3] = std::numeric_limits<double>::quiet_NaN();
  x[2][0][0] = std::numeric_limits<double>::infinity();
  const StackRanks found = stack_ranks(x, {});
  CHECK(at_row(found.rank, 0) == 0);
  CHECK(at_row(found.affine_rank, 0) == 0);
  CHECK(std::isnan(at_row(found.effective_rank, 0)));
  CHECK(std::isnan(at_row(found.stable_rank, 0)));
  CHECK(std::isnan(at_row(found.distance_to_rank_one, 0)));
  for (int64_t row : {1, 2}) {
    CHECK_FALSE(found.finite[row].item<bool>());
    CHECK(std::isnan(at_row(found.rank, row)));
    CHECK(std::isnan(at_row(found.affine_rank, row)));
    CHECK(std::isnan(at_row(stack_rank(x, {}), row)));
  }
  CHECK(at_row(found.effective_rank, 3) == at_row(alone.effective_rank, 0));
}

TEST_CASE("the two largest singular values, found without the others") {
  at::manual_seed(11);
  const int64_t n = 240;
  const auto spectrum = [n](std::vector<double> first, double ratio) {
    while (std::ssize(first) < n) {
      first.push_back(first.back() * ratio);
    }
    return with_spectrum(first, n, n);
  };
  const at::Tensor causal =
      at::softmax(at::randn({n, n}, at::kDouble).tril() * 3 + at::full({n, n}, -1e9, at::kDouble).triu(1), 1);
  const std::vector<std::pair<const char*, at::Tensor>> found = {
      {"drawn", at::randn({n, n}, at::kDouble)},      {"attention", causal},
      {"falling", spectrum({5, 4, 3}, 0.9)},          {"twice the first", spectrum({5, 5, 3}, 0.9)},
      {"twice the second", spectrum({5, 3, 3}, 0.9)}, {"far apart", spectrum({1, 1e-4, 0.9e-4}, 0.8)}};
  for (const auto& [name, matrix] : found) {
    CAPTURE(std::string(name));
    const at::Tensor all = at::linalg_svdvals(matrix);
    const auto two = leading_values(matrix);
    if (two) {
      CHECK(two->first == doctest::Approx(all[0].item<double>()).epsilon(1e-12));
      CHECK(two->second == doctest::Approx(all[1].item<double>()).epsilon(1e-11));
    }
    // Squares of what is far apart lie too far apart for the search, and drawn ones too close.
    CHECK((two || std::string(name) == "drawn" || std::string(name) == "far apart"));
    const StackGaps gaps = stack_gaps(matrix.view({1, 1, n, n}));
    CHECK(gaps.first.item<double>() == doctest::Approx(all[0].item<double>()).epsilon(1e-12));
    CHECK(gaps.second.item<double>() == doctest::Approx(all[1].item<double>()).epsilon(1e-11));
  }
  // What it cannot tell is left to the whole decomposition: no gap at all, and rank one.
  const at::Tensor identity = at::eye(n, at::kDouble), uniform = at::full({n, n}, 1.0 / n, at::kDouble);
  CHECK_FALSE(leading_values(identity));
  CHECK_FALSE(leading_values(uniform));
  at::Tensor stack = at::stack({identity, uniform, causal, identity}).view({2, 2, n, n}).clone();
  stack[1][1][0][0] = std::numeric_limits<double>::infinity();
  const StackGaps gaps = stack_gaps(stack);
  CHECK(gaps.second[0][0].item<double>() == doctest::Approx(1).epsilon(1e-12));
  CHECK(gaps.second[0][1].item<double>() < 1e-13);
  CHECK(gaps.second[1][0].item<double>() ==
        doctest::Approx(at::linalg_svdvals(causal)[1].item<double>()).epsilon(1e-11));
  CHECK(std::isnan(gaps.first[1][1].item<double>()));
}

TEST_CASE("gaps: uniform attention has rank one, the identity no gap, one token no second value") {
  const at::Tensor uniform = at::full({6, 6}, 1.0 / 6, at::kDouble), identity = at::eye(6, at::kDouble);
  const at::Tensor mixed = 0.75 * uniform + 0.25 * identity;  // values 1, 0.25, ...
  const StackGaps found = stack_gaps(at::stack({uniform, identity, mixed}).unsqueeze(0));
  CHECK(found.first[0][0].item<double>() == doctest::Approx(1).epsilon(1e-14));
  CHECK(found.second[0][0].item<double>() < 1e-15);
  CHECK(found.second[0][1].item<double>() == doctest::Approx(1).epsilon(1e-14));
  CHECK(found.second[0][2].item<double>() == doctest::Approx(0.25).epsilon(1e-13));
  const StackGaps single = stack_gaps(at::ones({1, 1, 1, 1}, at::kDouble));
  CHECK(single.first[0][0].item<double>() == 1);
  CHECK(std::isnan(single.second[0][0].item<double>()));
}

TEST_CASE("H1: a constant row has no scale of its own") {
  at::manual_seed(5);
  at::Tensor x = at::randn({2, 4, 10}, at::kDouble);
  x[1][2].fill_(3);
  const StackHypotheses found = stack_hypotheses(x, NormKind::layer, {});
  CHECK(at_row(found.row_scale, 0) > 0.1);
  CHECK(at_row(found.row_scale, 1) < 1e-15);
  // RMSNorm does not mind: only a row of zeros has no size.
  CHECK(at_row(stack_hypotheses(x, NormKind::rms, {}).row_scale, 1) > 0.1);
  x[1][2].zero_();
  CHECK(at_row(stack_hypotheses(x, NormKind::rms, {}).row_scale, 1) == 0);
}

TEST_CASE("H2: the angle of the all-ones vector to the row space, planted") {
  at::manual_seed(6);
  const int64_t d = 20;
  const at::Tensor ones = at::full({d}, 1 / std::sqrt(static_cast<double>(d)), at::kDouble);
  at::Tensor across = at::randn({3, d}, at::kDouble);
  across = across - at::outer(at::mv(across, ones), ones);  // rows at a right angle to it
  const at::Tensor aside = across[2] / across[2].norm();
  for (double angle : {0.0, 1e-5, 0.3, std::acos(0.0)}) {
    const at::Tensor leaning = std::cos(angle) * ones + std::sin(angle) * aside;
    const at::Tensor basis = at::stack({across[0], across[1] - at::dot(across[1], aside) * aside, leaning});
    at::Tensor first = basis[0] - at::dot(basis[0], aside) * aside;
    const at::Tensor rows = at::stack({first, basis[1], leaning});
    // As many tokens as directions, and more: then the row space is found by its numerical rank.
    for (int64_t n : {3, 7}) {
      const at::Tensor x = at::matmul(at::randn({n, 3}, at::kDouble), rows).unsqueeze(0);
      const double sine = at_row(stack_hypotheses(x, NormKind::layer, {}).ones_sine, 0);
      CHECK(std::abs(sine - std::sin(angle)) < 1e-12);
    }
  }
  CHECK(std::isnan(at_row(stack_hypotheses(across.unsqueeze(0), NormKind::rms, {}).ones_sine, 0)));
}

TEST_CASE("H4 fails wherever the rows are independent, and can hold where they are not") {
  at::manual_seed(7);
  // n ≤ d - 1 and full row rank: the columns span everything.
  const at::Tensor wide = at::randn({1, 6, 9}, at::kDouble);
  CHECK(at_row(stack_hypotheses(wide, NormKind::layer, {}).scales_sine, 0) == 0);
  // More tokens than dimensions, against least squares.
  const at::Tensor tall = at::randn({12, 5}, at::kDouble), centred = tall - tall.mean(1, true);
  const at::Tensor scales = centred.square().mean(1).sqrt();
  const at::Tensor basis = std::get<0>(at::linalg_svd(centred, false)).narrow(1, 0, 4);
  const at::Tensor rest = scales - at::mv(basis, at::mv(basis.t(), scales));
  const double expected = (rest.norm() / scales.norm()).item<double>();
  CHECK(expected > 0.1);
  CHECK(at_row(stack_hypotheses(tall.unsqueeze(0), NormKind::layer, {}).scales_sine, 0) ==
        doctest::Approx(expected).epsilon(1e-12));
  // Rows that differ by a factor alone: their scales are that factor, which is a column.
  const at::Tensor ray = at::outer(at::rand({7}, at::kDouble) + 1, at::randn({5}, at::kDouble)).unsqueeze(0);
  CHECK(at_row(stack_hypotheses(ray, NormKind::layer, {}).scales_sine, 0) < 1e-14);
}

}  // namespace pare
