#include "pare/linear/linear_system.h"

#include <ATen/ATen.h>

#include <limits>

namespace pare {

namespace {

using Matrices = std::vector<at::Tensor>;

at::Tensor between(const at::Tensor& left, const at::Tensor& x, const at::Tensor& right) {
  const at::Tensor half = left.defined() ? at::matmul(left, x) : x;
  return right.defined() ? at::matmul(half, right) : half;
}

at::Tensor turned(const at::Tensor& x) {
  return x.defined() ? x.t() : x;
}

Matrices applied(const std::vector<MatrixEquation>& equations, const Matrices& x) {
  Matrices found;
  for (const MatrixEquation& equation : equations) {
    at::Tensor sum;
    for (const MatrixTerm& term : equation.terms) {
      const at::Tensor& own = x[term.unknown];
      const at::Tensor part = between(term.left, term.transposed ? own.t() : own, term.right) * term.sign;
      sum = sum.defined() ? sum + part : part;
    }
    found.push_back(sum);
  }
  return found;
}

// The transpose of `applied`, on what is left of each equation.
Matrices gathered(const std::vector<MatrixEquation>& equations, const Matrices& left, const Matrices& like) {
  Matrices found;
  for (const at::Tensor& x : like) {
    found.push_back(at::zeros_like(x));
  }
  for (size_t i = 0; i < equations.size(); ++i) {
    for (const MatrixTerm& term : equations[i].terms) {
      const at::Tensor part = between(turned(term.left), left[i], turned(term.right)) * term.sign;
      found[term.unknown] += term.transposed ? part.t() : part;
    }
  }
  return found;
}

double square(const Matrices& x) {
  double sum = 0;
  for (const at::Tensor& one : x) {
    sum += one.square().sum().item<double>();
  }
  return sum;
}

void add(Matrices& x, const Matrices& y, double factor) {
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = x[i] + y[i] * factor;
  }
}

}  // namespace

at::Tensor one_over(const at::Tensor& rows) {
  const at::Tensor sizes = rows.norm(2, {1}, true);
  return 1 / at::where(sizes > 0, sizes, at::ones_like(sizes));
}

// What of the equation is known goes to the other side.
void MatrixSystem::add(MatrixEquation equation, const at::Tensor& scale) {
  MatrixEquation kept;
  kept.constant = equation.constant.defined() && scale.defined() ? equation.constant * scale : equation.constant;
  for (MatrixTerm& term : equation.terms) {
    const auto scaled = [&](const at::Tensor& left, int64_t rows) {
      return !scale.defined() ? left : left.defined() ? left * scale : at::diag(scale.expand({rows, 1}).squeeze(1));
    };
    if (const auto known = this->known.find(term.unknown); known != this->known.end()) {
      const at::Tensor x = term.transposed ? known->second.t() : known->second;
      at::Tensor whole = between(term.left, x, term.right) * term.sign;
      whole = scale.defined() ? whole * scale : whole;
      kept.constant = kept.constant.defined() ? kept.constant - whole : -whole;
      continue;
    }
    term.left = scaled(term.left, guess[term.unknown].size(0));
    kept.terms.push_back(term);
  }
  if (!kept.terms.empty()) {
    equations.push_back(std::move(kept));
  }
}

std::vector<at::Tensor> solve_together(const std::vector<MatrixEquation>& equations, std::vector<at::Tensor> x) {
  int64_t unknowns = 0;
  for (const at::Tensor& one : x) {
    unknowns += one.numel();
  }
  Matrices left = applied(equations, x);
  for (size_t i = 0; i < left.size(); ++i) {
    left[i] = equations[i].constant.defined() ? equations[i].constant - left[i] : -left[i];
  }
  Matrices steepest = gathered(equations, left, x), direction = steepest;
  double size = square(steepest), before = std::numeric_limits<double>::infinity();
  const double first = size;
  constexpr double enough = 1e-30, little = 0.99;
  constexpr int64_t often = 64;
  for (int64_t i = 0; i < 2 * unknowns && size > first * enough; ++i) {
    if (i % often == 0) {
      const double now = square(left);
      if (now > before * little) {
        break;  // what is left is no error of the unknowns
      }
      before = now;
    }
    const Matrices moved = applied(equations, direction);
    const double length = square(moved);
    if (!(length > 0)) {
      break;
    }
    add(x, direction, size / length);
    add(left, moved, -size / length);
    steepest = gathered(equations, left, x);
    const double next = square(steepest);
    Matrices following = steepest;
    add(following, direction, next / size);
    direction = std::move(following);
    size = next;
  }
  return x;
}

}  // namespace pare
