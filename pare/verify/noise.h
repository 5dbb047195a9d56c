#pragma once
// What rounding alone makes of a model.

#include <cstdint>

#include "pare/checkpoint/model.h"

namespace pare {

// Every weight moved by one rounding, up or down at random, of the type that `stored` keeps the tensor of that name in;
// what it does not keep, of the finest type it has. Loaded in float64, row by row where the original can be.
Model moved_by_rounding(const Model& model, const Weights& stored, uint64_t seed);

// The type among these weights that rounds most.
Dtype coarsest(const Weights& weights);

}  // namespace pare
