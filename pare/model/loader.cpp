#include "pare/model/loader.h"

#include <ATen/ATen.h>

#include "pare/support/error.h"
#include "pare/support/mapped.h"

namespace pare {

at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (!weight.defined()) {
    return bias.defined() ? x + bias.tensor() : x;
  }
  const at::Tensor matrix = weight.tensor();
  return at::linear(x, matrix.scalar_type() == x.scalar_type() ? matrix : matrix.to(x.scalar_type()), bias.tensor());
}

Loader::Loader(const Architecture& architecture, const Weights& weights, const Arithmetic& arithmetic, bool training,
               const Blend* blend)
    : table_(tensor_table(architecture)),
      weights_(weights),
      arithmetic_(arithmetic),
      training_(training),
      blend_(blend) {
  PARE_CHECK(!blend || training, "only who trains mixes two Architectures");
}

const Weight& Loader::find(const TensorId& id) const {
  const std::string& name = table_.at(id).name;
  const auto found = weights_.find(name);
  PARE_CHECK(found != weights_.end(), "no tensor '" + name + "': a model is checked when it is opened");
  return found->second;
}

at::Tensor Loader::tensor(const TensorId& id) {
  if (!stores(id)) {
    return {};
  }
  const at::NoGradGuard no_grad;
  const at::ScalarType type = table_.at(id).shape.size() >= 2 ? matrix_type() : arithmetic_.dtype;
  at::Tensor loaded = find(id).load().to(arithmetic_.device, type);
  if (training_) {
    loaded.requires_grad_(true);
    parameters_[table_.at(id).name] = loaded;
  }
  return loaded;
}

Parameter Loader::made_from(const TensorId& id, Parameter::Make make) {
  const at::Tensor stored = tensor(id);
  if (!stored.defined()) {
    return {};
  }
  return training_ ? Parameter(stored, std::move(make)) : Parameter(make(stored));
}

Parameter Loader::mixed(const TensorId& id) {
  const at::Tensor stored = tensor(id);
  if (!blend_ || !stored.defined()) {
    return stored;
  }
  const at::Tensor t = blend_->t;
  if (id.kind == TensorKind::bias) {
    return blend_->biases.contains(id) ? Parameter(stored, [t](const at::Tensor& bias) { return bias * (1 - t); })
                                       : Parameter(stored);
  }
  if (const auto found = blend_->projections.find(id.module); found != blend_->projections.end()) {
    const at::Tensor multiple = found->second, identity = at::eye(stored.size(0), stored.options());
    return {stored, [=](const at::Tensor& matrix) { return matrix * (1 - t) + identity * (t * multiple); }};
  }
  const bool down = id.module.sublayer == Sublayer::mlp && id.module.slot == Slot::down;
  if (down && blend_->neurons.contains(*id.module.block)) {
    const at::Tensor leaving =
        at::arange(stored.size(1), stored.options().dtype(at::kLong)) >= blend_->neurons.at(*id.module.block);
    const at::Tensor fading = leaving.to(stored.scalar_type());
    return {stored, [=](const at::Tensor& matrix) { return matrix * (1 - fading * t); }};
  }
  return stored;
}

at::Tensor Loader::indices(const TensorId& id) {
  return find(id).load().to(arithmetic_.device, at::kLong);
}

// A copy is no leaf: the leaves are put together when they are used, and gradients find their way back.
Linear Loader::stacked_leaves(const std::vector<ModuleId>& modules, bool any_bias) {
  std::vector<Parameter> weights, biases;
  for (const ModuleId& module : modules) {
    const Linear one = linear(module);
    const at::Tensor rows = one.weight.tensor().detach().select(1, 0);
    weights.push_back(one.weight);
    biases.push_back(one.bias.defined() ? one.bias : Parameter(at::zeros_like(rows)));
  }
  const auto joined = [](const std::vector<Parameter>& parts) {
    // Detached: what a part is made by would be held with its graph, whose gradients belong to another stream than the
    // one that a step is recorded on.
    return Parameter(parts.front().tensor().detach(), [parts](const at::Tensor&) {
      const std::vector<at::Tensor> tensors = mapped(parts, &Parameter::tensor);
      return at::cat(tensors);
    });
  };
  return {joined(weights), any_bias ? joined(biases) : Parameter()};
}

Linear Loader::stacked(const std::vector<ModuleId>& modules) {
  int64_t rows = 0, width = 0;
  bool any_bias = false;
  for (const ModuleId& module : modules) {
    const Shape& shape = table_.at(weight_of(module)).shape;
    rows += shape[0];
    width = shape[1];
    any_bias = any_bias || stores(bias_of(module));
  }
  if (training_) {
    return stacked_leaves(modules, any_bias);
  }
  const at::TensorOptions options = at::TensorOptions(arithmetic_.dtype).device(arithmetic_.device);
  const at::Tensor weights = at::empty({rows, width}, options.dtype(matrix_type()));
  const at::Tensor bias = any_bias ? at::zeros({rows}, options) : at::Tensor();
  int64_t row = 0;
  for (const ModuleId& module : modules) {
    const int64_t count = table_.at(weight_of(module)).shape[0];
    weights.narrow(0, row, count).copy_(find(weight_of(module)).load());
    if (stores(bias_of(module))) {
      bias.narrow(0, row, count).copy_(find(bias_of(module)).load());
    }
    row += count;
  }
  return {weights, bias};
}

}  // namespace pare
