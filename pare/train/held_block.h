#pragma once
// The one block whose weights are whole, of a model that no rank holds (ZeRO, stage 3). A block is gathered when it is
// about to run, forward or on the way back, and dropped when another one is; the sum of its gradients then goes, part
// by part, to the ranks that move them. Its layers are run again on the way back, so nothing else refers to its
// weights.

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pare/model/executor.h"
#include "pare/train/weight_shares.h"

namespace pare {

class HeldBlock {
 public:
  using Tensors = WeightShares::Tensors;
  // `moved`: the type in which weights are moved and gradients are summed.
  HeldBlock(const Communicator& ranks, std::shared_ptr<WeightShares> shares, at::ScalarType moved);

  // What an executor that is loaded and run tells of its blocks. Outlives it.
  BlockWatch watch(WeightShares::Start start);

  bool has(const std::string& leaf) const { return leaves_.contains(leaf); }

  void clear();           // a step begins: its gradients are zero
  void begin_backward();  // from now on what is dropped has gradients
  void end_backward();    // no block is held afterwards
  void finish();          // all sums are here

  Tensors gradients() const;  // this rank's own stretches, as WeightShares::own() has them

 private:
  struct Block {
    size_t number = 0;  // in the shares
    FlatLayout layout;
    std::vector<at::Tensor> leaves;  // in the order of their names
    std::vector<at::Tensor> sums;    // of each bucket's part
  };
  // One bucket on its way to those whose parts it has.
  struct Sent {
    at::Tensor flat, part, sum;
    Exchange exchange;
  };
  void take(int64_t n, const Tensors& leaves, const WeightShares::Start& start);
  void want(int64_t n);
  void let_go();
  void send_gradients(Block& block);

  Communicator ranks_;
  std::shared_ptr<WeightShares> shares_;
  at::ScalarType moved_;
  std::map<int64_t, Block> blocks_;
  Tensors leaves_;  // of all blocks
  std::optional<int64_t> held_;
  bool backward_ = false;
  std::vector<Sent> sent_;
};

}  // namespace pare
