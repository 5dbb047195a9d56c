#pragma once
// What rounding alone makes of a model.

#include <cstdint>
#include <set>
#include <string>

#include "pare/checkpoint/model.h"

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

  // Every weight moved by one rounding, up or down at random. Loaded in float64, row by row where the original can be.
  Model moved(const Model& model, uint64_t seed) const;

 private:
  const Weights& stored_;
  std::set<std::string> same_;
};

}  // namespace pare
