#include "pare/model/dropout.h"

#include <ATen/ATen.h>

#include "pare/support/mixed_bits.h"

namespace pare {

Dropout::Dropout(const DropoutRates& rates, uint64_t seed, at::Device device)
    : rates_(rates), generator_(at::globalContext().defaultGenerator(device).clone()) {
  generator_.set_current_seed(seed);
}

at::Tensor Dropout::operator()(const at::Tensor& x, double rate) {
  if (rate == 0) {
    return x;
  }
  const at::Tensor kept = at::empty(x.sizes(), x.options().requires_grad(false)).bernoulli_(1 - rate, generator_);
  return x * kept.div_(1 - rate);
}

uint64_t dropout_seed(uint64_t seed, uint64_t step, uint64_t batch) {
  return mixed_bits(mixed_bits(mixed_bits(seed + golden_bits) + step + golden_bits) + batch + golden_bits);
}

}  // namespace pare
