#include "pare/decode/repeated_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace pare {

at::Tensor RepeatedStep::read(const at::Tensor& ids) {
  if (ids.size(1) == 1 && cache_.length > 0) {
    return step(ids);
  }
  const at::Tensor place = std::exchange(cache_.place, at::Tensor());
  const int64_t capacity = cache_.capacity;
  const at::Tensor logits = executor_->forward({.ids = ids}, &cache_, nullptr, Logits::last).logits.flatten();
  if (place.defined() && cache_.capacity == capacity) {  // nothing has moved
    cache_.place = place.fill_(cache_.length);
  } else {
    work_.reset();
  }
  return logits;
}

at::Tensor RepeatedStep::step(const at::Tensor& id) {
  if (!work_ || cache_.length == cache_.capacity) {
    const int64_t room = cache_.length == cache_.capacity ? 2 * cache_.capacity : cache_.capacity;
    cache_.stand_still(std::min(room, std::max(cache_.length + 1, executor_->architecture().context)));
    id_ = at::empty_like(id);
    work_.emplace(device_, [this] {
      logits_ = executor_->forward({.ids = id_}, &cache_, nullptr, Logits::last).logits.flatten();
    });
  }
  id_.copy_(id);
  work_->run();
  ++cache_.length;
  return logits_;
}

void RepeatedStep::reset() {
  cache_.length = 0;
}

}  // namespace pare
