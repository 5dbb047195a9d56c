#include "pare/search/joint_system.h"

#include <ATen/ATen.h>

namespace pare {

at::Tensor one_over(const at::Tensor& rows) {
  const at::Tensor sizes = rows.norm(2, {1}, true);
  return 1 / at::where(sizes > 0, sizes, at::ones_like(sizes));
}

// What of the equation is known goes to the other side.
void JointSystem::add(MatrixEquation equation, const at::Tensor& scale) {
  MatrixEquation kept;
  kept.constant = equation.constant.defined() && scale.defined() ? equation.constant * scale : equation.constant;
  for (MatrixTerm& term : equation.terms) {
    const auto scaled = [&](const at::Tensor& left, int64_t rows) {
      return !scale.defined() ? left : left.defined() ? left * scale : at::diag(scale.expand({rows, 1}).squeeze(1));
    };
    if (const auto known = this->known.find(term.unknown); known != this->known.end()) {
      const at::Tensor x = term.transposed ? known->second.t() : known->second;
      const at::Tensor half = term.left.defined() ? at::matmul(term.left, x) : x;
      at::Tensor whole = (term.right.defined() ? at::matmul(half, term.right) : half) * term.sign;
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

}  // namespace pare
