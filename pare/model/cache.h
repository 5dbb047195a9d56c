#pragma once
// What decoding remembers between steps. Grows by doubling, so a step allocates nothing most of the time.

#include <ATen/core/Tensor.h>

#include <vector>

namespace pare {

struct LayerCache {
  // [batch, heads, capacity, width] each. What they hold is the layer's business: keys, values, inputs; an undefined
  // one is recomputed from the other.
  at::Tensor first, second;
};

struct Cache {
  explicit Cache(int64_t initial_capacity = 256) : capacity(initial_capacity) {}

  int64_t length = 0;  // tokens remembered, padding included
  int64_t capacity = 0;
  at::Tensor positions;   // int64 [batch, length]
  at::Tensor mask;        // bool [batch, length]; undefined: every token is real
  at::Tensor ids, types;  // [batch, length], kept only where a longer sequence changes what earlier tokens compute
  std::vector<LayerCache> layers;
};

// Appends [batch, heads, tokens, width] after `length` remembered ones and returns all of them.
at::Tensor append(at::Tensor& stored, const at::Tensor& fresh, int64_t length, int64_t capacity);

}  // namespace pare
