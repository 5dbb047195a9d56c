#include "pare/model/activation.h"

#include <ATen/ATen.h>

#include "pare/support/error.h"

namespace pare {

// 0.5 x (1 + tanh(c (x + 0.044715 x³))) = x sigmoid(x (2c + 2c 0.044715 x²)), with c = sqrt(2/pi).
// On CPUs libtorch's own is slower, on some ten times, and this is the same function.
static at::Tensor gelu_tanh(const at::Tensor& x, double two_c) {
  const at::Tensor slope = at::addcmul(at::scalar_tensor(two_c, x.options()), x, x, two_c * 0.044715);
  if (x.requires_grad()) {
    return x * at::sigmoid(x * slope);
  }
  return slope.mul_(x).sigmoid_().mul_(x);  // nobody else has seen it: no further memory
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_tanh:
      return x.is_cpu() ? gelu_tanh(x, 1.5957691216057308) : at::gelu(x, "tanh");
    case Activation::gelu_bloom:  // the constant as Bloom has it, with eight digits
      return gelu_tanh(x, 2 * 0.79788456);
    case Activation::quick_gelu:
      return x * at::sigmoid(1.702 * x);
    case Activation::relu:
      return at::relu(x);
    case Activation::relu_squared:
      return at::relu(x).square();
    case Activation::silu:
      return at::silu(x);
    case Activation::sigmoid:
      return at::sigmoid(x);
    case Activation::tanh:
      return at::tanh(x);
    case Activation::identity:
      return x;
    case Activation::xielu:
      PARE_UNREACHABLE("xIELU has numbers of its own: xielu()");
  }
  PARE_UNREACHABLE("an activation nobody computes");
}

// a x² + s x to the right of 0, b (exp(min(x, least)) - 1 - x) + s x to the left; a = softplus(positive) and
// b = s + softplus(negative).
at::Tensor xielu(const Curve& curve, const at::Tensor& x) {
  const at::Tensor right = at::softplus(curve.positive) * x * x;
  const at::Tensor left = (at::expm1(at::minimum(x, curve.least)) - x) * (curve.slope + at::softplus(curve.negative));
  return at::where(x > 0, right, left) + curve.slope * x;
}

}  // namespace pare
