#include "pare/train/trainer.h"

#include <ATen/ATen.h>

#include "pare/support/error.h"

namespace pare {

namespace {

at::Tensor found_in(const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? at::Tensor() : found->second;
}

}  // namespace

// A tensor as it is when it is loaded, of which several ranks may each have a stretch.
Weight Trainer::stored(const std::string& name, const std::string& of, const at::Tensor& here) const {
  const at::Tensor& leaf = executor_.parameters().at(of);
  const at::ScalarType type = narrow_ ? at::kFloat : leaf.scalar_type();
  const auto load = [shares = shares_, of, here] {
    return shares ? shares->whole(of, here) : here.to(at::kCPU, here.scalar_type(), false, /*copy=*/true);
  };
  return Weight::leaf(name, dtype_of(type), leaf.sizes().vec(), load);
}

Model Trainer::model() const {
  Weights weights = indices_;
  for (const auto& [name, leaf] : executor_.parameters()) {
    weights[name] = stored(name, name, found_in(masters_, name));
  }
  return {architecture_, std::move(weights)};
}

Weights Trainer::state() const {
  const Tensors moments = optimiser_->state();
  Weights state;
  for (const auto& [name, leaf] : executor_.parameters()) {
    for (const char* kind : {".mean", ".square"}) {
      state[name + kind] = stored(name + kind, name, found_in(moments, name + kind));
    }
  }
  for (const auto& [name, constant] : company_.morph ? company_.morph->state() : Tensors()) {
    state[name] = Weight::leaf(name, dtype_of(constant.scalar_type()), constant.sizes().vec(),
                               [constant] { return constant.to(at::kCPU, constant.scalar_type(), false, true); });
  }
  return state;
}

void Trainer::restore(const Weights& state, int64_t steps) {
  const auto moment = [&](const std::string& of, const std::string& name) {
    const auto found = state.find(name);
    refuse_if(found == state.end() || found->second.shape() != executor_.parameters().at(of).sizes().vec(),
              "the optimiser's state has no {} of this run's shape: is it of another model?", name);
    return shares_ ? shares_->stretch(of, found->second.load()) : found->second.load();
  };
  optimiser_->restore(moment, steps);
  if (company_.morph) {
    company_.morph->restore(state);
  }
}

Trainer::Tensors Trainer::gradients() const {
  Tensors result;
  const Tensors own = shares_ ? own_gradients() : Tensors();
  for (const auto& [name, leaf] : executor_.parameters()) {
    result[name] = shares_ ? shares_->whole(name, found_in(own, name)) : gradients_[result.size()];
  }
  return result;
}

}  // namespace pare
