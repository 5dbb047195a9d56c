#pragma once
// Weights on their way into the executor: converted once, one at a time.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pare/checkpoint/weights.h"

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

class Loader {
 public:
  // Training: every tensor becomes a leaf that collects gradients, kept in parameters() under its canonical name.
  Loader(const Weights& weights, at::ScalarType dtype, at::Device device, bool training)
      : weights_(weights), dtype_(dtype), device_(device), training_(training) {}

  at::Tensor tensor(const std::string& name);
  at::Tensor tensor_if(bool present, const std::string& name) { return present ? tensor(name) : at::Tensor(); }
  Parameter made_from(const std::string& name, Parameter::Make make);
  at::Tensor indices(const std::string& name);  // integers, not converted
  Linear linear(const std::string& name, bool bias) {
    return {tensor(name + ".weight"), tensor_if(bias, name + ".bias")};
  }
  // Several dense layers that read the same input, as one: fewer and larger products. Never when training.
  Linear stacked(const std::vector<std::string>& names, const std::vector<bool>& biases);

  bool training() const { return training_; }
  const std::map<std::string, at::Tensor>& parameters() const { return parameters_; }

 private:
  const Weight& find(const std::string& name) const;
  const Weights& weights_;
  at::ScalarType dtype_;
  at::Device device_;
  bool training_;
  std::map<std::string, at::Tensor> parameters_;
};

}  // namespace pare
