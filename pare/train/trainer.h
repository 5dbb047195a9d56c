#pragma once
// A model that is being trained: its weights, their gradients and the optimiser. Knows nothing of files and of time.

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/model/executor.h"
#include "pare/train/batches.h"
#include "pare/train/config.h"
#include "pare/train/loss.h"
#include "pare/train/optimiser.h"

namespace pare {

struct StepMeasure {
  double loss = 0, gradient_norm = 0;
};

struct Evaluation {
  double loss = 0, accuracy = 0;  // means over all targets
};

class Trainer {
 public:
  Trainer(const TrainConfig& config, const Model& start, at::Device device);

  // The mean loss over all targets of the batches, and its gradients, clipped. Nothing moves yet: what is not a number
  // can still be looked at. `step` decides what dropout leaves out.
  StepMeasure measure(std::span<const TrainBatch> batches, int64_t step = 0);
  void update(double rate);

  Evaluation evaluate(const Batches& batches) const;

  // As it is now, on the CPU: float32 where the arithmetic is narrower.
  Model model() const;
  AdamW& optimiser() { return optimiser_; }
  const AdamW& optimiser() const { return optimiser_; }

  const Executor& executor() const { return executor_; }
  at::Device device() const { return device_; }
  std::map<std::string, at::Tensor> gradients() const;  // by name, of the last measure()

 private:
  using Tensors = std::map<std::string, at::Tensor>;
  struct Rows {
    at::Tensor x, targets;
  };
  Rows asked_rows(const TrainBatch& batch, Dropout* dropout = nullptr) const;

  Architecture architecture_;
  Weights indices_;  // pivots, which no optimiser moves
  at::Device device_;
  Executor executor_;
  Tensors masters_;  // the weights: the executor's own, or wider ones that are rounded into it
  bool narrow_;
  std::vector<at::Tensor> gradients_;  // of the masters, in their order and type
  std::vector<at::Tensor> leaves_;     // of the executor, in the same order
  LossHead head_;
  HeadGradients head_gradients_;
  int64_t piece_;
  DropoutRates dropout_;
  int64_t seed_;
  AdamW optimiser_;
};

}  // namespace pare
