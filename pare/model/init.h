#pragma once
// Random weights for any Architecture, each tensor made when asked for, so that a model larger than memory can be made.

#include "pare/arch/architecture.h"
#include "pare/checkpoint/weights.h"

namespace pare {

// Plain: matrices and tables keep the scale of what they read, gains are one, biases zero.
// Generic: everything random, gains and biases too, so that no test passes because something is one or zero.
// Unit: matrices and tables of deviation 1, for who has another scale in mind; gains and biases as in plain.
// Repeated: as plain, but a large tensor repeats its first million numbers. For measuring speed: billions of them take
// longer to draw than to measure.
enum class Draw { plain, generic, unit, repeated };

// A tensor depends on the seed and its name alone, not on the order in which tensors are asked for.
Weights random_weights(const Architecture& architecture, uint64_t seed, Dtype dtype, Draw draw);

}  // namespace pare
