#pragma once
// How much more a rounding moves the answer after a change of basis than it did before.
//
// In a basis Θ of a stream, x Θ is long where a reader Θ⁻¹ W is, and their product is not: one rounding of either moves
// the answer by up to cond(Θ) roundings, and in the mean by |Θ| |Θ⁻¹| / n. What multiplies two tensors rounds in both
// of their bases: a head's value times its output, between two streams, or twice on one. So conditions of passes after
// one another multiply.

#include <vector>

#include "pare/arch/streams.h"
#include "pare/checkpoint/model.h"

namespace pare {

double amplification(const Model& model, const TensorId& tensor);                // 1 where no basis was changed
double amplification(const Model& model, const ModuleId& a, const ModuleId& b);  // of what mixes their matrices
double amplification(const Model& model, const std::vector<Port>& ports);        // the most of these tensors

// From now on a rounding of this tensor, or of all these, counts so many times as much.
void amplify(Model& model, const TensorId& tensor, double factor);
void amplify(Model& model, const std::vector<Port>& ports, double factor);

}  // namespace pare
