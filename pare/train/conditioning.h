#pragma once
// Matrices that a rewrite will invert, kept well conditioned while they are trained: what is lost by inverting one
// decides in which type the result may be stored.
//
// The penalty of a matrix is the mean of (σ - 1)² over its singular values, which is its distance to the nearest
// orthogonal matrix P: |W - P|² / n. Its gradient 2 (W - P) / n does not vanish where σ does, as that of
// |W Wᵀ - I|² would. W is taken in a gauge of its heads, rows scaled to length one, so that size does not count.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/model.h"

namespace pare {

class ConditioningLoss {
 public:
  // Of the model that a run ends with: on each stream that eliminate_projection may change, its first square matrix.
  ConditioningLoss(const Architecture& last, at::Device device);

  bool empty() const { return matrices_.empty(); }
  // The sum over all of them, with its graph. `now`: what is trained, whose norms may not be gone yet; a matrix then
  // takes their gains along.
  at::Tensor penalty(const Architecture& now, const std::map<std::string, at::Tensor>& parameters) const;

 private:
  struct Matrix {
    int64_t block = 0;
    std::string weight;
    at::Tensor alike;  // [rows, rows]: the mean over rows that a gauge scales alike
  };
  std::vector<Matrix> matrices_;
};

// What eliminate_projection would make of a model.
struct RewriteOutlook {
  std::map<std::string, double> conditions;       // of each matrix that would go, in the best gauge of its heads
  std::map<std::string, double> predicted_error;  // of the result, by the type that it is stored in
  double worst() const;
};
RewriteOutlook rewrite_outlook(const Model& model);

}  // namespace pare
