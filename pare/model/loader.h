#pragma once
// Weights on their way into the executor: converted once, one at a time.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pare/arch/tensors.h"
#include "pare/checkpoint/weights.h"
#include "pare/model/blend.h"
#include "pare/model/device.h"

namespace pare {

// A tensor of a layer as the computation wants it: as it is stored, or made from what is stored. Made once, when it is
// loaded; but when training in every forward pass, since the optimiser moves what is stored.
class Parameter {
 public:
  using Make = std::function<at::Tensor(const at::Tensor& stored)>;
  Parameter() = default;
  Parameter(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  Parameter(at::Tensor stored, Make make) : tensor_(std::move(stored)), make_(std::move(make)) {}

  bool defined() const { return tensor_.defined(); }
  at::Tensor tensor() const { return make_ ? make_(tensor_) : tensor_; }

 private:
  at::Tensor tensor_;
  Make make_;
};

// y = x W' + b; an undefined weight is the identity, an undefined bias is none.
struct Linear {
  Parameter weight, bias;
  at::Tensor operator()(const at::Tensor& x) const;
};

// Reads what the Architecture stores, by its table of tensors. What it does not store stays undefined: no matrix is the
// identity, no bias is none.
class Loader {
 public:
  // Training: every tensor becomes a leaf that collects gradients, kept in parameters() under its canonical name.
  // With a blend, what is loaded is mixed with what it becomes; only of who trains.
  Loader(const Architecture& architecture, const Weights& weights, const Arithmetic& arithmetic, bool training,
         const Blend* blend = nullptr);

  bool stores(const TensorId& id) const { return table_.contains(id); }
  at::Tensor tensor(const TensorId& id);
  Parameter made_from(const TensorId& id, Parameter::Make make);
  at::Tensor indices(const TensorId& id);  // integers, not converted
  Linear linear(const ModuleId& module) { return {mixed(weight_of(module)), mixed(bias_of(module))}; }
  // Several dense layers that read the same input, as one: fewer and larger products. When training they are put
  // together in every forward pass, which costs less than it saves.
  Linear stacked(const std::vector<ModuleId>& modules);

  bool training() const { return training_; }
  const Blend* blend() const { return blend_; }  // nullptr where nothing is mixed
  const std::map<std::string, at::Tensor>& parameters() const { return parameters_; }

 private:
  const Weight& find(const TensorId& id) const;
  at::ScalarType matrix_type() const { return arithmetic_.matrices.value_or(arithmetic_.dtype); }
  Linear stacked_leaves(const std::vector<ModuleId>& modules, bool any_bias);
  Parameter mixed(const TensorId& id);
  TensorTable table_;
  const Weights& weights_;
  Arithmetic arithmetic_;
  bool training_;
  const Blend* blend_;
  std::map<std::string, at::Tensor> parameters_;
};

}  // namespace pare
