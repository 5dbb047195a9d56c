#pragma once
// Which neurons of y = W₂ α(W₁ x + b₁) to turn round so that the MLP changes by a given linear map.
//
// For α(z) - α(-z) = z a neuron turned round gives w₂ α(-z) = w₂ α(z) - w₂ z. So with the neurons J turned round the
// MLP is what it was, less W₂[:,J] (W₁[J,:] x + b₁[J]). Which J makes W₂[:,J] W₁[J,:] a given matrix T is one linear
// solve: the indicator s of J is the solution of least squares of W₂ diag(s) W₁ = T, whose normal equations are
//   G s = r,  G = (W₂ᵀ W₂) ∘ (W₁ W₁ᵀ),  r_j = w₂ⱼᵀ T w₁ⱼ.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pare {

struct Neurons {
  at::Tensor up, bias, down;  // W₁ [f, d], b₁ [f] or undefined, W₂ [d, f], all in float64
  double roundoff = 0;        // of the type that they are stored in
};

struct Flips {
  std::vector<int64_t> neurons;  // J, where it was found
  bool found = false;
  // The largest entry of W₂[:,J] W₁[J,:] - T, in what rounding the stored weights can make of
  // it; and its
  // 2-norm.
  double residual = 0, error = 0;
  double distance = 0;  // of s to {0, 1}, before it is rounded; not known where nothing had to be solved
  // Why there might be a J, or another way, that was not found: hypotheses of the theorem that do not hold. Where this
  // is empty and J was not found, there is none (for ReLU).
  std::vector<std::string> open;
};

// `wanted` is T: -I absorbs a skip, Z' - Z turns a skip Z into a skip Z'.
Flips find_flips(const Neurons& neurons, const at::Tensor& wanted);

}  // namespace pare
