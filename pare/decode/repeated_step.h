#pragma once
// A model that is read token by token on a device which is slow to be told what to do: each further token is the same
// work, recorded once and handed over whole.

#include <ATen/core/Tensor.h>

#include <optional>

#include "pare/model/cache.h"
#include "pare/model/device_graph.h"
#include "pare/model/executor.h"

namespace pare {

class RepeatedStep {
 public:
  // Of an Architecture whose steps are alike; with room for so many tokens at first. The Executor outlives it.
  RepeatedStep(const Executor& executor, at::Device device, int64_t room = 256)
      : executor_(&executor), device_(device), cache_(room) {}

  // Reads ids [1, tokens] after what was read before; logits [vocab] behind the last, which stay until the next call.
  at::Tensor read(const at::Tensor& ids);
  // Another text begins, in the same memory.
  void reset();
  int64_t length() const { return cache_.length; }

 private:
  at::Tensor step(const at::Tensor& id);

  const Executor* executor_;
  at::Device device_;
  Cache cache_;
  at::Tensor id_, logits_;  // of the step
  std::optional<RepeatedWork> work_;
};

}  // namespace pare
