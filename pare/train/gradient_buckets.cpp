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

// One travels while another is filled; each takes its own size again until it has arrived.
constexpr size_t most_under_way = 2;

}  // namespace

struct GradientBuckets::State {
  struct Bucket {
    at::Tensor flat;
    int64_t open = 0;  // how often autograd will still add to it in this pass
    Exchange exchange;
  };

  Communicator ranks;
  Summed summed;
  FlatLayout layout;
  std::vector<at::Tensor> leaves, gradients;
  std::vector<int64_t> times;
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
      close(i, 1);
      send_closed();
    }
  }

  void close(size_t i, int64_t by) {
    Bucket& bucket = buckets[layout.places[i].bucket];
    bucket.open -= by;
    PARE_CHECK(bucket.open >= 0, "a leaf that is filled more often than was said");
  }

  // In one order on all ranks, whatever order they were filled in.
  void send_closed() {
    for (; sent < buckets.size() && buckets[sent].open == 0; ++early) {
      send_next();
    }
  }

  void send_next() {
    const size_t b = sent++;
    if (b >= most_under_way) {
      buckets[b - most_under_way].exchange.wait();
    }
    const at::Tensor& flat = buckets[b].flat;
    buckets[b].exchange = summed == Summed::whole
                              ? ranks.begin_all_reduce(flat)
                              : ranks.begin_reduce_scatter(layout.part(flat, b, ranks.rank()), flat);
  }
};

GradientBuckets::GradientBuckets(const Communicator& ranks, const std::vector<at::Tensor>& leaves,
                                 const std::vector<int64_t>& times, const FlatLayout& layout, Summed summed)
    : state_(new State{.ranks = ranks, .summed = summed, .layout = layout, .leaves = leaves, .times = times}) {
  PARE_CHECK(leaves.size() == times.size() && leaves.size() == layout.places.size(), "a gradient for each leaf");
  State& s = *state_;
  for (const at::Tensor& flat : layout.zeros(leaves.front().device())) {
    s.buckets.push_back({.flat = flat});
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    s.gradients.push_back(layout.view(s.buckets[layout.places[i].bucket].flat, i));
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
    bucket.open = 0;
  }
  for (size_t i = 0; i < s.leaves.size(); ++i) {  // where it can autograd adds to the bucket itself
    s.leaves[i].mutable_grad() = s.in_place(i) ? s.gradients[i] : at::Tensor();
    s.buckets[s.layout.places[i].bucket].open += s.times[i];
  }
  s.sent = 0;
  s.early = 0;
  s.last_pass = false;
}

void GradientBuckets::begin_last_pass(const std::vector<size_t>& filled) {
  state_->last_pass = true;
  for (const size_t i : filled) {
    state_->close(i, state_->times[i]);
  }
  state_->send_closed();
}

void GradientBuckets::finish() {
  State& s = *state_;
  while (s.sent < s.buckets.size()) {  // of leaves that the loss does not depend on
    s.send_next();
  }
  for (State::Bucket& bucket : s.buckets) {
    bucket.exchange.wait();
  }
}

std::vector<at::Tensor> GradientBuckets::own_parts() const {
  const State& s = *state_;
  std::vector<at::Tensor> parts;
  for (const State::Bucket& bucket : s.buckets) {
    parts.push_back(s.layout.part(bucket.flat, parts.size(), s.ranks.rank()));
  }
  return parts;
}

int64_t GradientBuckets::count() const {
  return std::ssize(state_->buckets);
}

int64_t GradientBuckets::sent_early() const {
  return state_->early;
}

}  // namespace pare
