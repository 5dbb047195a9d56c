#pragma once
// What rounding alone makes of a model: every weight moved a little, up or down at random.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "pare/checkpoint/model.h"
#include "pare/checkpoint/weight.h"

namespace pare {

// What storing a model as `stored` can have rounded: tensors that are the `same` numbers there were not, but for the
// arithmetic's float64; others in the type that they have there, or the finest that it has where they are gone.
class Rounding {
 public:
  Rounding(const Weights& stored, std::set<std::string> same) : stored_(stored), same_(std::move(same)) {}

  Dtype dtype_of(const std::string& tensor) const;
  // Of the types that these may have been rounded in. Who computes with several does so in the finest.
  Dtype coarsest(const Weights& weights) const;
  Dtype finest(const Weights& weights) const;

  // Every weight moved by one rounding, up or down at random; of the type that it has, or of this one. Loaded in
  // float64, row by row where the original can be.
  Model moved(const Model& model, uint64_t seed, std::optional<Dtype> dtype = std::nullopt) const;

 private:
  const Weights& stored_;
  std::set<std::string> same_;
};

// Where the elements of a tensor go. A direction belongs to its element, so a tensor is moved alike whether it is
// loaded whole or in slices.
struct Movement {
  uint64_t seed = 0;
  double from_zero = 0;  // what each is moved by a fraction of; 0: its own size
};

// In float64. `rows` are those from `first_row` on.
at::Tensor moved(const at::Tensor& rows, int64_t first_row, const Movement& movement, double fraction);
Weight moved(const Weight& original, const Movement& movement, double fraction);

}  // namespace pare
