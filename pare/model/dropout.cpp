#include "pare/model/dropout.h"

#include <ATen/ATen.h>

namespace pare {

namespace {

uint64_t mixed_bits(uint64_t x) {  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

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
  constexpr uint64_t golden = 0x9e3779b97f4a7c15u;
  return mixed_bits(mixed_bits(mixed_bits(seed + golden) + step + golden) + batch + golden);
}

}  // namespace pare
