#include "pare/algebra/flipped_neurons.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace pare {

namespace {

// Both weights of a product rounded once, twice over: what was right before it was stored is recognised.
constexpr double roundings_forgiven = 4;
constexpr double arithmetic_forgiven = 1e-13;  // weights that somebody solved for in float64 have lost some digits
constexpr double least_pivot = 1e-10;          // of a Gram matrix of unit vectors: squares of distances, in float64

int64_t rank_of(const at::Tensor& matrix, double roundoff) {
  const int64_t least = std::min(matrix.size(0), matrix.size(1));
  const at::Tensor thin = matrix.size(0) < matrix.size(1) ? matrix.t() : matrix;
  const auto [factor, info] = at::linalg_cholesky_ex(at::matmul(thin.t(), thin));
  const at::Tensor pivots = factor.diagonal().abs();
  if (info.item<int64_t>() == 0 && pivots.min().item<double>() > 1e-5 * pivots.max().item<double>()) {
    return least;  // and singular values take ten times as long
  }
  const at::Tensor values = at::linalg_svdvals(matrix);
  const double zero = roundoff * static_cast<double>(std::max(matrix.size(0), matrix.size(1)));
  return (values > zero * values[0]).sum().item<int64_t>();
}

int64_t zero_rows(const at::Tensor& rows) {
  return (rows.abs().amax(1) == 0).sum().item<int64_t>();
}

// Rows (w, b) that are multiples of others: their kinks coincide. Multiples have one length along any direction, so
// only rows that are close to each other along one of no meaning are compared.
int64_t collinear_rows(const Neurons& n) {
  at::Tensor rows = n.bias.defined() ? at::cat({n.up, n.bias.unsqueeze(1)}, 1) : n.up;
  rows = rows / rows.norm(2, {1}, true).clamp_min(1e-300);
  const at::Tensor counted = at::arange(1, rows.size(1) + 1, at::kDouble), direction = at::cos(counted.square());
  const at::Tensor sorted = rows.index_select(0, at::argsort(at::mv(rows, direction).abs()));
  const double least = 1 - std::max(1e-12, 16 * n.roundoff * n.roundoff);
  at::Tensor found = at::zeros({rows.size(0)}, at::kBool);
  for (int64_t apart = 1; apart <= 4 && apart < rows.size(0); ++apart) {
    const int64_t pairs = rows.size(0) - apart;
    const at::Tensor cosines = (sorted.narrow(0, 0, pairs) * sorted.narrow(0, apart, pairs)).sum(1).abs();
    found.narrow(0, 0, pairs).logical_or_(cosines >= least);
    found.narrow(0, apart, pairs).logical_or_(cosines >= least);
  }
  return found.sum().item<int64_t>();
}

// What the theorem needs for a no: without it, other neurons might do what no signs of these do.
std::vector<std::string> failed_hypotheses(const Neurons& n) {
  std::vector<std::string> failed;
  for (const auto& [matrix, name] : {std::pair(&n.up, "up"), std::pair(&n.down, "down")}) {
    if (const int64_t rank = rank_of(*matrix, n.roundoff); rank < n.up.size(1)) {
      failed.push_back(fmt::format("{} has rank {} of {}", name, rank, n.up.size(1)));
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

// Whatever s in [0, 1] is, <T, T - W₂ diag(s) W₁> is at least |T|² - Σ max(0, r_j). Where that is more than rounding
// explains, no J comes near, and nothing has to be solved. The least 2-norm of the difference that follows; else zero.
double least_distance(const Neurons& n, const at::Tensor& wanted, double forgiven) {
  const double square = wanted.square().sum().item<double>();
  const double missing = square - along(n, wanted).clamp_min(0).sum().item<double>();
  const Neurons sizes{.up = n.up.abs(), .bias = {}, .down = n.down.abs()};
  if (missing <= forgiven * along(sizes, wanted.abs()).sum().item<double>()) {
    return 0;
  }
  return missing / std::sqrt(square * static_cast<double>(wanted.size(0)));
}

}  // namespace

Flips find_flips(const Neurons& n, const at::Tensor& wanted) {
  const double forgiven = roundings_forgiven * n.roundoff + arithmetic_forgiven;
  Flips flips;
  flips.error = least_distance(n, wanted, forgiven);
  if (flips.error > 0) {
    flips.residual = std::numeric_limits<double>::infinity();
    flips.open = failed_hypotheses(n);
    return flips;
  }
  const Solution solution = solve(n, wanted);
  const at::Tensor indicator = (solution.s > 0.5).to(at::kDouble);
  flips.distance = (solution.s - indicator).abs().max().item<double>();
  const at::Tensor off = product(n, indicator) - wanted;
  const at::Tensor rounding = forgiven * at::matmul(n.down.abs() * indicator, n.up.abs());
  flips.residual = (off.abs() / rounding.clamp_min(1e-300)).max().item<double>();
  flips.error = at::linalg_svdvals(off)[0].item<double>();
  flips.found = flips.residual <= 1;
  if (flips.found) {
    const at::Tensor chosen = indicator.nonzero().squeeze(1).contiguous();
    flips.neurons.assign(chosen.data_ptr<int64_t>(), chosen.data_ptr<int64_t>() + chosen.numel());
    return flips;
  }
  flips.open = failed_hypotheses(n);
  if (const int64_t width = n.up.size(0), equations = wanted.numel(); width > equations) {
    flips.open.push_back(fmt::format("{} neurons are more than the {} equations", width, equations));
  } else if (!solution.unique) {
    flips.open.emplace_back("the equations for the neurons have more than one solution");
  }
  return flips;
}

}  // namespace pare
