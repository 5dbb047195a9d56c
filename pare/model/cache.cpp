#include "pare/model/cache.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/model/rope.h"

namespace pare {

bool steps_are_alike(const Architecture& a) {
  return !a.embedding.position_pad && std::ranges::none_of(a.blocks, [](const Block& block) {
    return block.attention.rope && depends_on_length(*block.attention.rope);
  });
}

at::Tensor joined(const at::Tensor& before, const at::Tensor& now) {
  if (!before.defined()) {
    return now;
  }
  const int64_t batch = std::max(before.size(0), now.size(0));
  return at::cat({before.expand({batch, -1}), now.expand({batch, -1})}, 1);
}

void Cache::reserve(int64_t tokens) {
  capacity = capacity < tokens ? std::max(2 * capacity, tokens) : capacity;
  for (LayerCache& layer : layers) {
    for (at::Tensor* stored : {&layer.keys, &layer.values, &layer.inputs}) {
      if (stored->defined() && stored->size(2) < tokens) {
        const at::Tensor before = stored->narrow(2, 0, length);
        *stored = at::empty({stored->size(0), stored->size(1), capacity, stored->size(3)}, stored->options());
        stored->narrow(2, 0, length).copy_(before);
      }
    }
  }
}

void Cache::stand_still(int64_t tokens) {
  reserve(tokens);
  for (LayerCache& layer : layers) {
    for (at::Tensor* stored : {&layer.keys, &layer.values, &layer.inputs}) {
      if (stored->defined()) {  // what is masked is multiplied by zero all the same, so it must be a number
        stored->narrow(2, length, capacity - length).zero_();
        place = place.defined() ? place : at::empty({1}, stored->options().dtype(at::kLong));
      }
    }
  }
  place.fill_(length);
}

at::Tensor append(at::Tensor& stored, const at::Tensor& fresh, int64_t length, int64_t capacity) {
  const int64_t total = length + fresh.size(2);
  if (!stored.defined() || stored.size(2) < total) {
    const at::Tensor larger = at::empty({fresh.size(0), fresh.size(1), capacity, fresh.size(3)}, fresh.options());
    if (stored.defined()) {
      larger.narrow(2, 0, length).copy_(stored.narrow(2, 0, length));
    }
    stored = larger;
  }
  stored.narrow(2, length, fresh.size(2)).copy_(fresh);
  return stored.narrow(2, 0, total);
}

}  // namespace pare
