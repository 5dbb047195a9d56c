// Where heads write, and how symmetric their scores are, against planted angles and known matrices.

#include "pare/probes/subspaces.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

namespace pare {

namespace {

at::Tensor random_orthogonal(int64_t d) {
  return std::get<0>(at::linalg_qr(at::randn({d, d}, at::kDouble)));
}

// W_O [d, 2k] of two heads whose subspaces have these principal angles, each in a random basis of its own.
at::Tensor two_heads_at(const std::vector<double>& angles, int64_t d) {
  const int64_t k = std::ssize(angles);
  const at::Tensor axes = random_orthogonal(d);
  std::vector<at::Tensor> first, second;
  for (int64_t i = 0; i < k; ++i) {
    const double angle = angles[i];
    first.push_back(axes.select(1, i));
    second.push_back(std::cos(angle) * axes.select(1, i) + std::sin(angle) * axes.select(1, k + i));
  }
  return at::cat({at::matmul(at::stack(first, 1), at::randn({k, k}, at::kDouble)),
                  at::matmul(at::stack(second, 1), at::randn({k, k}, at::kDouble))},
                 1);
}

}  // namespace

TEST_CASE("planted angles between heads, by all of their coordinates and by some") {
  at::manual_seed(1);
  const std::vector<double> angles = {0.2, 0.7, 1.3};
  const at::Tensor output = two_heads_at(angles, 11);
  const OutputBases bases = output_bases(output, 2);
  const StackSubspaces found = stack_subspaces(at::randn({4, 9, 2, 3}, at::kDouble), bases, {.threshold = 1e-9});
  for (int64_t row = 0; row < 4; ++row) {
    CHECK(found.dimension[row][0].item<double>() == 3);
    CHECK(found.smallest[row][0].item<double>() == doctest::Approx(0.2).epsilon(1e-12));
    CHECK(found.mean[row][0].item<double>() == doctest::Approx((0.2 + 0.7 + 1.3) / 3).epsilon(1e-12));
  }
  // Two tokens: each head writes into a plane of its three dimensions. Against the definition, in all of R^d.
  const at::Tensor few = at::randn({1, 2, 2, 3}, at::kDouble);
  const StackSubspaces planes = stack_subspaces(few, bases, {.threshold = 1e-9});
  CHECK(planes.dimension[0][1].item<double>() == 2);
  std::vector<at::Tensor> spaces;
  for (int64_t h = 0; h < 2; ++h) {
    const at::Tensor written = at::matmul(few[0].select(1, h), output.narrow(1, 3 * h, 3).t());
    spaces.push_back(std::get<0>(at::linalg_qr(written.t())));
  }
  const at::Tensor cosines = at::linalg_svdvals(at::matmul(spaces[0].t(), spaces[1]));
  CHECK(planes.smallest[0][0].item<double>() == doctest::Approx(std::acos(cosines[0].item<double>())).epsilon(1e-10));
  CHECK(planes.mean[0][0].item<double>() == doctest::Approx(cosines.acos().mean().item<double>()).epsilon(1e-10));
}

TEST_CASE("orthogonal heads are at a right angle, the same head at none, a nearly parallel one at its own") {
  at::manual_seed(2);
  const double right = std::numbers::pi / 2;
  for (double angle : {right, 0.0, 1e-6, 1e-10}) {
    const at::Tensor output = two_heads_at({angle, right}, 8);
    const StackSubspaces found =
        stack_subspaces(at::randn({2, 6, 2, 2}, at::kDouble), output_bases(output, 2), {.threshold = 1e-9});
    CHECK(std::abs(found.smallest[1][0].item<double>() - angle) < 1e-14);
    CHECK(std::abs(found.mean[1][0].item<double>() - (angle + right) / 2) < 1e-14);
  }
}

TEST_CASE("a head that writes nothing has no angle, and one number that is not finite no dimension") {
  at::manual_seed(3);
  const OutputBases bases = output_bases(two_heads_at({0.4, 0.5}, 8), 2);
  at::Tensor written = at::randn({3, 6, 2, 2}, at::kDouble);
  written[0].select(1, 1).zero_();
  written[1][0][0][0] = NAN;
  const StackSubspaces found = stack_subspaces(written, bases, {});
  CHECK(found.dimension[0][0].item<double>() == 2);
  CHECK(found.dimension[0][1].item<double>() == 0);
  CHECK(std::isnan(found.smallest[0][0].item<double>()));
  CHECK(std::isnan(found.dimension[1][0].item<double>()));
  CHECK(std::isnan(found.smallest[1][0].item<double>()));
  CHECK(found.smallest[2][0].item<double>() == doctest::Approx(0.4).epsilon(1e-10));
}

TEST_CASE("one head has no pairs, and a head wider than the stream writes into all of it") {
  at::manual_seed(4);
  const OutputBases alone = output_bases(at::randn({5, 3}, at::kDouble), 1);
  const StackSubspaces found = stack_subspaces(at::randn({2, 4, 1, 3}, at::kDouble), alone, {});
  CHECK(found.smallest.size(1) == 0);
  CHECK(found.dimension[1][0].item<double>() == 3);
  const OutputBases wide = output_bases(at::randn({4, 12}, at::kDouble), 2);
  const StackSubspaces all = stack_subspaces(at::randn({1, 9, 2, 6}, at::kDouble), wide, {.threshold = 1e-9});
  CHECK(all.dimension[0][0].item<double>() == 4);
  CHECK(all.mean[0][0].item<double>() < 1e-14);
}

TEST_CASE("asymmetry: 0 of a symmetric product, 1 of an antisymmetric one, and the same in every basis") {
  at::manual_seed(5);
  const at::Tensor a = at::randn({9, 4}, at::kDouble), b = at::randn({9, 4}, at::kDouble);
  CHECK(asymmetry(a, a) < 1e-15);
  // u vᵀ - v uᵀ
  CHECK(asymmetry(at::cat({a, b}, 1), at::cat({b, -a}, 1)) == doctest::Approx(1).epsilon(1e-14));
  const at::Tensor m = at::matmul(a, b.t());
  const double plain = ((m - m.t()).norm() / 2 / m.norm()).item<double>();
  CHECK(asymmetry(a, b) == doctest::Approx(plain).epsilon(1e-13));
  const at::Tensor gauge = at::randn({4, 4}, at::kDouble);
  CHECK(asymmetry(at::matmul(a, gauge), at::matmul(b, at::linalg_inv(gauge).t())) ==
        doctest::Approx(plain).epsilon(1e-10));
  CHECK(std::isnan(asymmetry(a, at::zeros_like(a))));
}

}  // namespace pare
