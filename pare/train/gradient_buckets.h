#pragma once
// Gradients that several ranks sum. All of them lie in a few flat tensors, each of which is exchanged as soon as the
// backward pass has filled it, while the pass goes on with the layers before.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "pare/ranks/communicator.h"
#include "pare/train/flat_layout.h"

namespace pare {

enum class Summed { whole, own_part };  // of each bucket on each rank; elsewhere the rank's own sums stay

class GradientBuckets {
 public:
  // `leaves` are what autograd fills, `times` how often it comes to each in one pass. The layout says in which type
  // gradients are summed, and has the tensors in the order in which a backward pass fills them.
  GradientBuckets(const Communicator& ranks, const std::vector<at::Tensor>& leaves, const std::vector<int64_t>& times,
                  const FlatLayout& layout, Summed summed = Summed::whole);
  ~GradientBuckets();

  const std::vector<at::Tensor>& gradients() const;  // of each leaf, where it lies in its bucket
  std::vector<at::Tensor> own_parts() const;         // of each bucket, the rank's

  void clear();
  // The pass that begins is the last of its step. What is in `filled` is complete: autograd adds nothing to it.
  void begin_last_pass(const std::vector<size_t>& filled);
  void finish();  // afterwards gradients, or the rank's part of them, are sums over all ranks

  // Buckets there are, and how many of them were on their way before the last pass had ended.
  int64_t count() const;
  int64_t sent_early() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace pare
