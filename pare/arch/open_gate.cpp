#include "pare/arch/open_gate.h"

#include "pare/support/error.h"

namespace pare {

OpenGate open_gate(Activation activation) {
  switch (activation) {
    case Activation::gelu:
    case Activation::gelu_tanh:
      return {16, 16};  // z Φ(z), or z times what is nearer to 1, and 1 - Φ(16) < 2⁻¹⁸⁹
    case Activation::quick_gelu:
      return {32, 32};  // z σ(1.702 z), and 1 - σ(1.702 · 32) < 2⁻⁷⁸
    case Activation::silu:
      return {64, 64};  // z σ(z), and 1 - σ(64) < 2⁻⁹²
    case Activation::tanh:
      return {32, 1};  // 1 - tanh(32) < 2⁻⁹¹
    case Activation::sigmoid:
      return {0, 0.5};  // needs no bias
    case Activation::relu:
    case Activation::relu_squared:
    case Activation::identity:
      return {1, 1};
  }
  PARE_UNREACHABLE("an activation nobody can hold open");
}

}  // namespace pare
