// Assignments against all orders there are.

#include "pare/linear/assignment.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

using namespace pare;

TEST_CASE("assignment finds the least sum, as trying all orders does") {
  at::manual_seed(1);
  for (int64_t n = 1; n <= 6; ++n) {
    const at::Tensor costs = at::randn({n, n}, at::kDouble);
    const auto sum = [&](const std::vector<int64_t>& order) {
      double total = 0;
      for (int64_t i = 0; i < n; ++i) {
        total += costs[i][order[i]].item<double>();
      }
      return total;
    };
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    double least = sum(order);
    while (std::next_permutation(order.begin(), order.end())) {
      least = std::min(least, sum(order));
    }
    CHECK(sum(assign(costs)) == doctest::Approx(least));
  }
  const at::Tensor order = at::randperm(600, at::kLong);
  const at::Tensor costs =
      -at::eye(600, at::kDouble).index_select(1, order.argsort()) + 0.1 * at::rand({600, 600}, at::kDouble);
  CHECK(at::equal(at::tensor(assign_many(costs), at::kLong), order));
}
