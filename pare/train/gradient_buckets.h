#pragma once
// Gradients that several ranks sum. All of them lie in a few flat tensors, each of which is exchanged as soon as the
// backward pass has filled it, while the pass goes on with the layers before.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "pare/ranks/communicator.h"

namespace pare {

constexpr int64_t usual_bucket = int64_t{25} << 20;  // bytes: a message long enough to be sent at the network's speed

class GradientBuckets {
 public:
  // `leaves` are what autograd fills; `like` says in which type each gradient is summed. `order` is in which order a
  // backward pass fills them, the same on all ranks; `bytes` how much one bucket has at least.
  GradientBuckets(const Communicator& ranks, const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& like,
                  const std::vector<size_t>& order, int64_t bytes = usual_bucket);
  ~GradientBuckets();

  const std::vector<at::Tensor>& gradients() const;  // of each leaf, a part of its bucket

  void clear();
  // The pass that begins is the last of its step. What is in `filled` is complete: autograd adds nothing to it.
  void begin_last_pass(const std::vector<size_t>& filled);
  void finish();  // afterwards gradients are sums over all ranks

  // Buckets there are, and how many of them were on their way before the last pass had ended.
  int64_t count() const;
  int64_t sent_early() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace pare
