#include "pare/train/gradient_buckets.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>

#include "pare/support/error.h"

namespace pare {

namespace {

// Runs after autograd has added all of a leaf's gradient in one backward pass.
struct AfterLeaf : torch::autograd::FunctionPostHook {
  explicit AfterLeaf(std::function<void()> act) : act(std::move(act)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    act();
    return outputs;
  }
  std::function<void()> act;
};

}  // namespace

struct GradientBuckets::State {
  struct Bucket {
    at::Tensor flat;
    size_t leaves = 0, open = 0;  // in it, and of those the ones that may still change
    Exchange exchange;
  };

  Communicator ranks;
  std::vector<at::Tensor> leaves, gradients;
  std::vector<size_t> bucket_of;
  std::vector<Bucket> buckets;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;  // a leaf alone would let them go, and their hooks
  size_t sent = 0;
  int64_t early = 0;
  bool last_pass = false;

  bool in_place(size_t i) const { return leaves[i].scalar_type() == gradients[i].scalar_type(); }

  void add(size_t i) {
    if (!in_place(i) && leaves[i].grad().defined()) {
      gradients[i].add_(leaves[i].grad());
      leaves[i].mutable_grad().reset();
    }
    if (last_pass) {
      close(i);
      send_closed();
    }
  }

  void close(size_t i) {
    Bucket& bucket = buckets[bucket_of[i]];
    PARE_CHECK(bucket.open > 0, "a leaf that is filled twice in one pass");
    --bucket.open;
  }

  // In one order on all ranks, whatever order they were filled in.
  void send_closed() {
    for (; sent < buckets.size() && buckets[sent].open == 0; ++sent) {
      buckets[sent].exchange = ranks.begin_all_reduce(buckets[sent].flat);
      ++early;
    }
  }
};

GradientBuckets::GradientBuckets(const Communicator& ranks, const std::vector<at::Tensor>& leaves,
                                 const std::vector<at::Tensor>& like, const std::vector<size_t>& order, int64_t bytes)
    : state_(std::make_shared<State>()) {
  PARE_CHECK(leaves.size() == like.size() && leaves.size() == order.size(), "a gradient for each leaf");
  State& s = *state_;
  s.ranks = ranks;
  s.leaves = leaves;
  s.gradients.resize(leaves.size());
  s.bucket_of.resize(leaves.size());
  for (size_t first = 0; first < order.size();) {
    int64_t numbers = 0;
    size_t end = first;
    const at::ScalarType type = like[order[first]].scalar_type();
    const auto full = [&] { return numbers * static_cast<int64_t>(c10::elementSize(type)) >= bytes; };
    for (; end < order.size() && !full() && like[order[end]].scalar_type() == type; ++end) {
      numbers += like[order[end]].numel();
    }
    const at::Tensor flat = at::zeros({numbers}, like[order[first]].options().requires_grad(false));
    int64_t begin = 0;
    for (size_t place = first; place < end; ++place) {
      const size_t i = order[place];
      s.gradients[i] = flat.narrow(0, begin, like[i].numel()).view(like[i].sizes());
      s.bucket_of[i] = s.buckets.size();
      begin += like[i].numel();
    }
    s.buckets.push_back({.flat = flat, .leaves = end - first});
    first = end;
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    s.accumulators.push_back(torch::autograd::impl::grad_accumulator(leaves[i]));
    s.accumulators.back()->add_post_hook(std::make_unique<AfterLeaf>([weak = std::weak_ptr(state_), i] {
      if (const std::shared_ptr<State> state = weak.lock()) {
        state->add(i);
      }
    }));
  }
}

GradientBuckets::~GradientBuckets() = default;

const std::vector<at::Tensor>& GradientBuckets::gradients() const {
  return state_->gradients;
}

void GradientBuckets::clear() {
  State& s = *state_;
  for (State::Bucket& bucket : s.buckets) {
    bucket.flat.zero_();
    bucket.open = bucket.leaves;
  }
  for (size_t i = 0; i < s.leaves.size(); ++i) {  // where it can autograd adds to the bucket itself
    s.leaves[i].mutable_grad() = s.in_place(i) ? s.gradients[i] : at::Tensor();
  }
  s.sent = 0;
  s.early = 0;
  s.last_pass = false;
}

void GradientBuckets::begin_last_pass(const std::vector<size_t>& filled) {
  state_->last_pass = true;
  for (const size_t i : filled) {
    state_->close(i);
  }
  state_->send_closed();
}

void GradientBuckets::finish() {
  State& s = *state_;
  for (; s.sent < s.buckets.size(); ++s.sent) {  // of leaves that the loss does not depend on
    s.buckets[s.sent].exchange = s.ranks.begin_all_reduce(s.buckets[s.sent].flat);
  }
  for (State::Bucket& bucket : s.buckets) {
    bucket.exchange.wait();
  }
}

int64_t GradientBuckets::count() const {
  return std::ssize(state_->buckets);
}

int64_t GradientBuckets::sent_early() const {
  return state_->early;
}

}  // namespace pare
