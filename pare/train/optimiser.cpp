#include "pare/train/optimiser.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pare/support/error.h"
#include "pare/support/mapped.h"

namespace pare {

double learning_rate(const OptimiserConfig& config, int64_t steps, int64_t step) {
  if (step < config.warmup) {
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup);
  }
  if (step >= steps) {
    return config.min_lr;
  }
  const double passed = static_cast<double>(step - config.warmup) / static_cast<double>(steps - config.warmup);
  return config.min_lr + 0.5 * (1 + std::cos(std::numbers::pi * passed)) * (config.lr - config.min_lr);
}

bool is_decayed(const TensorSpec& spec) {
  const bool scale = spec.part == Part::bias || spec.part == Part::norm || spec.part == Part::shape;
  return spec.shape.size() >= 2 && !scale && !spec.index;
}

AdamW::AdamW(const OptimiserConfig& config, const Tensors& weights, const std::vector<std::string>& decayed)
    : config_(config), groups_{{.decay = config.decay}, {.decay = 0}} {
  for (const auto& [name, weight] : weights) {
    const bool decays = std::ranges::find(decayed, name) != decayed.end();
    Group& group = groups_[decays ? 0 : 1];
    group.numbers.push_back(names_.size());
    group.weights.push_back(weight.detach());
    group.means.push_back(at::zeros_like(weight));
    group.squares.push_back(at::zeros_like(weight));
    group.steps.push_back(at::zeros({}, weight.options().dtype(at::kFloat)));
    names_.push_back(name);
  }
  // libtorch's kernels want it so: a float where they read it themselves.
  const at::Device device = weights.empty() ? at::kCPU : weights.begin()->second.device();
  rate_ = at::zeros({}, at::TensorOptions(device.is_cpu() ? at::kDouble : at::kFloat).device(device));
}

at::Tensor AdamW::clip(const std::vector<at::Tensor>& gradients, const Communicator& others) const {
  at::Tensor length = gradients.empty() ? at::zeros({}) : at::stack(at::_foreach_norm(gradients)).norm();
  if (!others.alone()) {
    const at::Tensor square = length.to(at::kDouble).square();
    others.all_reduce(square);
    length = square.sqrt();
  }
  if (config_.clip > 0) {
    at::_foreach_mul_(gradients, (config_.clip / (length + 1e-6)).clamp_max(1));
  }
  return length;
}

void AdamW::set_rate(double rate) {
  rate_.fill_(rate);
}

void AdamW::step(const std::vector<at::Tensor>& gradients, const at::Tensor& stopped) {
  const at::NoGradGuard no_grad;
  PARE_CHECK(gradients.size() == names_.size(), "a gradient for each weight");
  for (Group& group : groups_) {
    if (group.weights.empty()) {
      continue;
    }
    const std::vector<at::Tensor> own = mapped(group.numbers, [&](const size_t number) { return gradients[number]; });
    at::_foreach_add_(group.steps, 1);
    at::_fused_adamw_(group.weights, own, group.means, group.squares, {}, group.steps, rate_, config_.betas[0],
                      config_.betas[1], group.decay, config_.epsilon, /*amsgrad=*/false, /*maximize=*/false,
                      /*grad_scale=*/{}, stopped);
  }
}

AdamW::Tensors AdamW::state() const {
  Tensors state;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.numbers.size(); ++i) {
      const std::string& name = names_[group.numbers[i]];
      state[name + ".mean"] = group.means[i];
      state[name + ".square"] = group.squares[i];
    }
  }
  return state;
}

void AdamW::restore(const Moment& moment, int64_t steps) {
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.numbers.size(); ++i) {
      const std::string& name = names_[group.numbers[i]];
      group.means[i].copy_(moment(name, name + ".mean"));
      group.squares[i].copy_(moment(name, name + ".square"));
      group.steps[i].fill_(steps);
    }
  }
}

}  // namespace pare
