#include "pare/model/loader.h"

#include <ATen/ATen.h>

#include "pare/support/error.h"

namespace pare {

at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (!weight.defined()) {
    return bias.defined() ? x + bias.tensor() : x;
  }
  return at::linear(x, weight.tensor(), bias.tensor());
}

const Weight& Loader::find(const std::string& name) const {
  const auto found = weights_.find(name);
  PARE_CHECK(found != weights_.end(), "no tensor '" + name + "': a model is checked when it is opened");
  return found->second;
}

at::Tensor Loader::tensor(const std::string& name) {
  const at::NoGradGuard no_grad;
  at::Tensor loaded = find(name).load().to(device_, dtype_);
  if (training_) {
    loaded.requires_grad_(true);
    parameters_[name] = loaded;
  }
  return loaded;
}

Parameter Loader::made_from(const std::string& name, Parameter::Make make) {
  const at::Tensor stored = tensor(name);
  return training_ ? Parameter(stored, std::move(make)) : Parameter(make(stored));
}

at::Tensor Loader::indices(const std::string& name) {
  return find(name).load().to(device_, at::kLong);
}

Linear Loader::stacked(const std::vector<std::string>& names, const std::vector<bool>& biases) {
  PARE_CHECK(!training_ && names.size() == biases.size(), "stacking copies, and a copy is no leaf");
  int64_t rows = 0, width = 0;
  bool any_bias = false;
  for (size_t i = 0; i < names.size(); ++i) {
    const Shape& shape = find(names[i] + ".weight").shape();
    rows += shape[0];
    width = shape[1];
    any_bias = any_bias || biases[i];
  }
  const at::TensorOptions options = at::TensorOptions(dtype_).device(device_);
  const at::Tensor weights = at::empty({rows, width}, options);
  const at::Tensor bias = any_bias ? at::zeros({rows}, options) : at::Tensor();
  int64_t row = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const Weight& weight = find(names[i] + ".weight");
    weights.narrow(0, row, weight.shape()[0]).copy_(weight.load());
    if (biases[i]) {
      bias.narrow(0, row, weight.shape()[0]).copy_(find(names[i] + ".bias").load());
    }
    row += weight.shape()[0];
  }
  return {weights, bias};
}

}  // namespace pare
