#include "pare/train/held_block.h"

#include <ATen/ATen.h>

#include <limits>
#include <numeric>

#include "pare/support/error.h"
#include "pare/support/mapped.h"

namespace pare {

HeldBlock::HeldBlock(const Communicator& ranks, std::shared_ptr<WeightShares> shares, at::ScalarType moved)
    : ranks_(ranks), shares_(std::move(shares)), moved_(moved) {}

BlockWatch HeldBlock::watch(WeightShares::Start start) {
  return {.loaded = [this, start = std::move(start)](int64_t n, const Tensors& leaves) { take(n, leaves, start); },
          .wanted = [this](int64_t n) { want(n); }};
}

void HeldBlock::take(int64_t n, const Tensors& leaves, const WeightShares::Start& start) {
  if (leaves.empty()) {
    return;
  }
  Block block{.leaves = mapped(leaves, &Tensors::value_type::second)};
  const std::vector<at::Tensor> like = mapped(block.leaves, [this](const at::Tensor& leaf) {
    return at::empty_like(leaf, leaf.options().dtype(moved_).device(at::kMeta));
  });
  std::vector<size_t> order(like.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // A message as long as a block: nothing of it could be used before the rest.
  block.layout = FlatLayout(like, order, std::numeric_limits<int64_t>::max(), ranks_.size());
  block.number = shares_->add(leaves, start, block.layout, WeightShares::Whole::on_demand);
  for (const FlatLayout::Bucket& bucket : block.layout.buckets) {
    block.sums.push_back(
        at::zeros({bucket.numbers / ranks_.size()}, block.leaves.front().options().dtype(moved_).requires_grad(false)));
  }
  leaves_.insert(leaves.begin(), leaves.end());
  blocks_.emplace(n, std::move(block));
}

void HeldBlock::want(int64_t n) {
  const auto block = blocks_.find(n);
  if (held_ == n || block == blocks_.end()) {
    return;
  }
  let_go();
  shares_->fetch(block->second.number);
  held_ = n;
}

void HeldBlock::let_go() {
  if (!held_) {
    return;
  }
  Block& block = blocks_.at(*held_);
  if (backward_) {
    send_gradients(block);
  }
  shares_->drop(block.number);
  held_.reset();
}

// Those of the block before may still be on their way, so that they travel while this one is computed.
void HeldBlock::send_gradients(Block& block) {
  finish();
  std::vector<at::Tensor> buckets = block.layout.zeros(block.leaves.front().device());
  for (size_t i = 0; i < block.leaves.size(); ++i) {
    at::Tensor& found = block.leaves[i].mutable_grad();
    if (found.defined()) {
      block.layout.view(buckets[block.layout.places[i].bucket], i).copy_(found);
      found.reset();
    }
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    const at::Tensor part = at::empty_like(block.sums[b]);
    sent_.push_back({buckets[b], part, block.sums[b], ranks_.begin_reduce_scatter(part, buckets[b])});
  }
}

void HeldBlock::finish() {
  for (Sent& bucket : sent_) {
    bucket.exchange.wait();
    bucket.sum.add_(bucket.part);
  }
  sent_.clear();
}

void HeldBlock::clear() {
  for (auto& [n, block] : blocks_) {
    for (const at::Tensor& sum : block.sums) {
      sum.zero_();
    }
  }
}

void HeldBlock::begin_backward() {
  backward_ = true;
}

void HeldBlock::end_backward() {
  let_go();
  backward_ = false;
}

HeldBlock::Tensors HeldBlock::gradients() const {
  Tensors result;
  for (const auto& [n, block] : blocks_) {
    result.merge(shares_->own_of(block.number, block.sums));
  }
  return result;
}

}  // namespace pare
