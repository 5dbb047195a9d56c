#pragma once
// A number that holds the gate of a neuron open, whatever the neuron reads.

#include "pare/arch/kinds.h"

namespace pare {

// α(at) = value. Both are 0 or powers of two, which every stored type holds: what passes such a gate, and is divided by
// `value`, is not rounded. Where α(z) only tends to z or to 1, it is so far on there that float64 cannot tell: what is
// missing is less than 2⁻⁶⁴ of it.
struct OpenGate {
  double at = 0, value = 1;
};

OpenGate open_gate(Activation activation);

}  // namespace pare
