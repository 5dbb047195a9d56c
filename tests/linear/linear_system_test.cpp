// Matrices looked for together, against one dense system of least squares with every equation written out.

#include "pare/linear/linear_system.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

using namespace pare;

namespace {

at::Tensor drawn(int64_t rows, int64_t columns) {
  return at::randn({rows, columns}, at::kDouble);
}

}  // namespace

TEST_CASE("equations between matrices: the least squares of the dense system") {
  at::manual_seed(3);
  const int64_t n = 4, k = 3;
  const at::Tensor a = drawn(5, n), b = drawn(k, n), c = drawn(6, n), d = drawn(6, n), e = drawn(2, k);
  const at::Tensor a2 = drawn(5, k), right = drawn(2, n);
  // A X - A₂ Y B = 0,  C Xᵀ = D,  E Y = R Xᵀ Bᵀ...: not all can hold, so that it is least squares.
  const std::vector<MatrixEquation> equations = {
      {{{.unknown = 0, .left = a}, {.unknown = 1, .left = a2, .right = b, .sign = -1}}},
      {{{.unknown = 0, .left = c, .transposed = true}}, d},
      {{{.unknown = 1, .left = e}, {.unknown = 0, .left = right, .right = b.t(), .transposed = true}}},
  };
  const std::vector<at::Tensor> found =
      solve_together(equations, {at::zeros({n, n}, at::kDouble), at::zeros({k, k}, at::kDouble)});

  // vec by rows: vec(L X R) = (L ⊗ Rᵀ) vec(X), and vec(Xᵀ) = P vec(X).
  at::Tensor turn = at::zeros({n * n, n * n}, at::kDouble);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      turn[i * n + j][j * n + i] = 1;
    }
  }
  const at::Tensor one = at::eye(n, at::kDouble), small = at::eye(k, at::kDouble);
  const at::Tensor rows = at::cat({
      at::cat({at::kron(a, one), -at::kron(a2, b.t().contiguous())}, 1),
      at::cat({at::matmul(at::kron(c, one), turn), at::zeros({6 * n, k * k}, at::kDouble)}, 1),
      at::cat({at::matmul(at::kron(right, b), turn), at::kron(e, small)}, 1),
  });
  const at::Tensor target =
      at::cat({at::zeros({5 * n}, at::kDouble), d.flatten(), at::zeros({2 * k}, at::kDouble)}).unsqueeze(1);
  const at::Tensor dense = std::get<0>(at::linalg_lstsq(rows, target)).flatten();
  const at::Tensor both = at::cat({found[0].flatten(), found[1].flatten()});
  CHECK((both - dense).abs().max().item<double>() < 1e-10);
  CHECK(at::matmul(rows, dense.unsqueeze(1)).sub(target).norm().item<double>() > 0.1);
}

TEST_CASE("equations between matrices: what none of them sees stays as it was guessed") {
  at::manual_seed(4);
  const at::Tensor seen = drawn(2, 5), map = drawn(5, 5), guess = drawn(5, 5);
  const at::Tensor found = solve_together({{{{.unknown = 0, .left = seen}}, at::matmul(seen, map)}}, {guess})[0];
  CHECK((at::matmul(seen, found - map)).abs().max().item<double>() < 1e-12);
  const at::Tensor others = std::get<0>(at::linalg_qr(seen.t(), "complete")).narrow(1, 2, 3).t();
  CHECK((at::matmul(others, found - guess)).abs().max().item<double>() < 1e-12);
}
