#include "pare/algebra/flipped_neurons.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace pare {

namespace {

// Both weights of a product rounded once, twice over: what was right before it was stored is recognised.
constexpr double roundings_forgiven = 4;
constexpr double arithmetic_forgiven = 1e-13;  // weights that somebody solved for in float64 have lost some digits
constexpr double least_pivot = 1e-10;          // of a Gram matrix of unit vectors: squares of distances, in float64

int64_t rank_of(const at::Tensor& matrix, double roundoff) {
  const at::Tensor values = at::linalg_svdvals(matrix);
  const double least = roundoff * static_cast<double>(std::max(matrix.size(0), matrix.size(1)));
  return (values > least * values[0]).sum().item<int64_t>();
}

int64_t zero_rows(const at::Tensor& rows) {
  return (rows.abs().amax(1) == 0).sum().item<int64_t>();
}

// Rows (w, b) that are multiples of others: their kinks coincide.
int64_t collinear_rows(const Neurons& n) {
  at::Tensor rows = n.bias.defined() ? at::cat({n.up, n.bias.unsqueeze(1)}, 1) : n.up;
  rows = rows / rows.norm(2, {1}, true).clamp_min(1e-300);
  const double least = 1 - std::max(1e-12, 16 * n.roundoff * n.roundoff);
  const at::Tensor cosines = at::matmul(rows, rows.t()).abs_().fill_diagonal_(0);
  return (cosines.amax(1) >= least).sum().item<int64_t>();
}

std::vector<std::string> failed_hypotheses(const Neurons& n) {
  const int64_t width = n.up.size(0), d = n.up.size(1);
  std::vector<std::string> failed;
  for (const auto& [matrix, name] : {std::pair(&n.up, "up"), std::pair(&n.down, "down")}) {
    if (const int64_t rank = rank_of(*matrix, n.roundoff); rank < d) {
      failed.push_back(fmt::format("{} has rank {} of {}", name, rank, d));
    }
  }
  if (const int64_t zeros = zero_rows(n.up); zeros > 0) {
    failed.push_back(fmt::format("{} neurons read nothing", zeros));
  }
  if (const int64_t zeros = zero_rows(n.down.t()); zeros > 0) {
    failed.push_back(fmt::format("{} neurons write nothing", zeros));
  }
  if (const int64_t collinear = collinear_rows(n); collinear > 0) {
    failed.push_back(fmt::format("{} neurons read the same direction as another", collinear));
  }
  if (width > d * d) {
    failed.push_back(fmt::format("{} neurons are more than the {} equations", width, d * d));
  }
  return failed;
}

// (W₂ᵀ M W₁ᵀ)_jj: what M has along each neuron.
at::Tensor along(const Neurons& n, const at::Tensor& matrix) {
  return (at::matmul(matrix.t(), n.down).t() * n.up).sum(1);
}

at::Tensor product(const Neurons& n, const at::Tensor& s) {  // W₂ diag(s) W₁
  return at::matmul(n.down * s, n.up);
}

struct Solution {
  at::Tensor s;
  bool unique = true;
};

// In units of each neuron's size, so that small ones count as much as large ones.
Solution solve(const Neurons& n, const at::Tensor& wanted) {
  at::Tensor size = n.up.norm(2, {1}) * n.down.norm(2, {0});
  size = at::where(size > 0, size, at::ones_like(size));
  const at::Tensor gram =
      at::matmul(n.down.t(), n.down).mul_(at::matmul(n.up, n.up.t())).div_(size).div_(size.unsqueeze(1));
  auto [factor, info] = at::linalg_cholesky_ex(gram);
  Solution solution;
  solution.unique = info.item<int64_t>() == 0 && factor.diagonal().square().min().item<double>() >= least_pivot;
  if (!solution.unique) {  // some solution: what it is rounded to is checked like any other
    factor = std::get<0>(at::linalg_cholesky_ex(gram + least_pivot * at::eye(gram.size(0), gram.options())));
  }
  const auto solved = [&](const at::Tensor& right) {
    return at::cholesky_solve((right / size).unsqueeze(1), factor).squeeze(1) / size;
  };
  solution.s = solved(along(n, wanted));
  solution.s = solution.s + solved(along(n, wanted - product(n, solution.s)));  // the digits that squaring lost
  return solution;
}

}  // namespace

Flips find_flips(const Neurons& n, const at::Tensor& wanted) {
  const Solution solution = solve(n, wanted);
  const at::Tensor indicator = (solution.s > 0.5).to(at::kDouble);
  Flips flips;
  flips.distance = (solution.s - indicator).abs().max().item<double>();
  const at::Tensor off = product(n, indicator) - wanted;
  const at::Tensor rounding =
      (roundings_forgiven * n.roundoff + arithmetic_forgiven) * at::matmul(n.down.abs() * indicator, n.up.abs());
  flips.residual = (off.abs() / rounding.clamp_min(1e-300)).max().item<double>();
  flips.error = at::linalg_svdvals(off)[0].item<double>();
  flips.found = flips.residual <= 1;
  if (flips.found) {
    const at::Tensor chosen = indicator.nonzero().squeeze(1).contiguous();
    flips.neurons.assign(chosen.data_ptr<int64_t>(), chosen.data_ptr<int64_t>() + chosen.numel());
    return flips;
  }
  flips.open = failed_hypotheses(n);
  if (!solution.unique) {
    flips.open.push_back("the equations for the neurons have more than one solution");
  }
  return flips;
}

}  // namespace pare
