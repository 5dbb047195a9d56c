// Block Krylov: Q spans G, AᵀA G, (AᵀA)² G, ... of a drawn G, orthonormal throughout, and AQ = U diag(θ) Zᵀ gives the
// pairs u = U_i, v = Q Z_i with Av = θu. What is left of the other equation, r = ‖Aᵀu - θv‖, bounds the error: a
// singular value lies within r of θ, and within r²/δ where the next one is δ away (Kato 1949, Temple 1928, for the
// symmetric matrix of A and Aᵀ). Blocks of several columns find a value that occurs twice, which one column never does.

#include "pare/linear/leading_values.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <array>

namespace pare {

namespace {

constexpr int64_t columns_of_a_step = 4, first_check = 8, steps_between_checks = 3;
constexpr double accuracy = 1e-12;

// θ1, θ2 where they are known well enough.
std::optional<std::pair<double, double>> settled(const at::Tensor& a, const at::Tensor& basis,
                                                 const at::Tensor& image) {
  const auto [left, upper] = at::linalg_qr(image, "reduced");
  const auto [turn, values, right] = at::linalg_svd(upper, false);
  constexpr int64_t looked_at = 3;
  const at::Tensor u = at::matmul(left, turn.narrow(1, 0, looked_at));
  const at::Tensor v = at::matmul(basis, right.narrow(0, 0, looked_at).t());
  const at::Tensor rest = (at::matmul(a.t(), u) - v * values.narrow(0, 0, looked_at)).norm(2, 0);
  std::array<double, looked_at> theta = {}, r = {};
  for (int64_t i = 0; i < looked_at; ++i) {
    theta[i] = values[i].item<double>();
    r[i] = rest[i].item<double>();
  }
  const auto error = [&r](size_t i, double gap) { return gap > 0 ? std::min(r[i], r[i] * r[i] / gap) : r[i]; };
  const double above = theta[0] - r[0] - theta[1] - r[1], below = theta[1] - r[1] - theta[2] - r[2];
  const bool known = error(0, above) <= accuracy * theta[0] && error(1, std::min(above, below)) <= accuracy * theta[1];
  return known ? std::optional(std::pair(theta[0], theta[1])) : std::nullopt;
}

}  // namespace

std::optional<std::pair<double, double>> leading_values(const at::Tensor& matrix) {
  const at::Tensor a = matrix.contiguous();
  const int64_t n = a.size(0), most = n / 3 / columns_of_a_step;
  at::Generator random = at::detail::createCPUGenerator(1);
  const at::Tensor basis = at::empty({n, most * columns_of_a_step}, at::kDouble), image = at::empty_like(basis);
  at::Tensor block = std::get<0>(at::linalg_qr(at::randn({n, columns_of_a_step}, random, at::kDouble)));
  double size = 0;
  for (int64_t step = 0; step < most; ++step) {
    const int64_t begin = step * columns_of_a_step, known = begin + columns_of_a_step;
    basis.narrow(1, begin, columns_of_a_step).copy_(block);
    const at::Tensor there = at::matmul(a, block), q = basis.narrow(1, 0, known);
    image.narrow(1, begin, columns_of_a_step).copy_(there);
    const bool look = step + 1 >= first_check && (step + 1 - first_check) % steps_between_checks == 0;
    if (look) {
      if (const auto found = settled(a, q, image.narrow(1, 0, known))) {
        return found;
      }
    }
    at::Tensor next = at::matmul(a.t(), there);
    for (int twice = 0; twice < 2; ++twice) {
      next = next - at::matmul(q, at::matmul(q.t(), next));
    }
    const auto [directions, upper] = at::linalg_qr(next, "reduced");
    const at::Tensor lengths = upper.diagonal().abs();
    size = std::max(size, lengths.max().item<double>());
    // The space is closed, and what would be added to it is rounding, orthogonal to nothing.
    if (lengths.min().item<double>() <= 1e-10 * size) {
      return std::nullopt;
    }
    block = directions;
  }
  return std::nullopt;
}

}  // namespace pare
