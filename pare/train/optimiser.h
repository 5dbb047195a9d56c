#pragma once
// AdamW with decoupled decay of matrices, clipping by the norm of all gradients together, warm-up and cosine.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pare/arch/tensors.h"
#include "pare/ranks/communicator.h"
#include "pare/train/config.h"

namespace pare {

// Of step 0, 1, ...: rising to the largest in `warmup` steps, then half a cosine down to the smallest.
double learning_rate(const OptimiserConfig& config, int64_t steps, int64_t step);

// Whether weight decay pulls at it: matrices and tables, but no gain, bias or single vector.
bool is_decayed(const TensorSpec& spec);

class AdamW {
 public:
  using Tensors = std::map<std::string, at::Tensor>;
  // `weights` are moved in place; `decayed` names those that decay.
  AdamW(const OptimiserConfig& config, const Tensors& weights, const std::vector<std::string>& decayed);

  // Shortens gradients that are together longer than `clip`. Hands back how long they were, a tensor on their device.
  // `others`: ranks that have the rest of them.
  at::Tensor clip(const std::vector<at::Tensor>& gradients, const Communicator& others = {}) const;
  // Of the steps from now on. Held on the device, where a step that was recorded reads it.
  void set_rate(double rate);
  // Gradients in the order of the weights' names. Nothing moves where `stopped`, a float32 scalar on the device, is 1.
  void step(const std::vector<at::Tensor>& gradients, const at::Tensor& stopped);

  // "NAME.mean" and "NAME.square" for each weight, to be stored and put back.
  Tensors state() const;
  // `moment`: what is stored under that name of this weight.
  using Moment = std::function<at::Tensor(const std::string& weight, const std::string& name)>;
  void restore(const Moment& moment, int64_t steps);

 private:
  struct Group {
    double decay = 0;
    std::vector<size_t> numbers;
    std::vector<at::Tensor> weights, means, squares, steps;
  };
  OptimiserConfig config_;
  std::vector<std::string> names_;
  std::vector<Group> groups_;
  at::Tensor rate_;
};

}  // namespace pare
