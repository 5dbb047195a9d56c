#pragma once
// A model that is being trained: its weights, their gradients and the optimiser. Knows nothing of files and of time.

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/model/executor.h"
#include "pare/train/batches.h"
#include "pare/train/config.h"
#include "pare/train/loss.h"
#include "pare/train/morph.h"
#include "pare/train/optimiser.h"
#include "pare/train/teacher.h"

namespace pare {

struct StepMeasure {
  double loss = 0, gradient_norm = 0;
};

struct Evaluation {
  double loss = 0, accuracy = 0;  // means over all targets
};

// Who else has a say; nobody where they are empty.
struct TrainCompany {
  std::shared_ptr<const Morph> morph;  // the start is a model of its plan.from
  std::shared_ptr<const Teacher> teacher;
};

at::ScalarType arithmetic_of(TrainDtype dtype);

class Trainer {
 public:
  Trainer(const TrainConfig& config, const Model& start, at::Device device, TrainCompany company = {});

  // The mean loss over all targets of the batches, and its gradients, clipped. Nothing moves yet: what is not a number
  // can still be looked at.
  StepMeasure measure(std::span<const TrainBatch> batches);
  void update(double rate);

  Evaluation evaluate(const Batches& batches) const;

  // As it is now, on the CPU: float32 where the arithmetic is narrower.
  Model model() const;
  // What the next step depends on besides the weights: the optimiser's, and the constants of a morph.
  std::map<std::string, at::Tensor> state() const;
  void restore(const std::map<std::string, at::Tensor>& state, int64_t steps);

  const Executor& executor() const { return executor_; }
  at::Device device() const { return device_; }
  std::map<std::string, at::Tensor> gradients() const;  // by name, of the last measure()

 private:
  using Tensors = std::map<std::string, at::Tensor>;
  struct Rows {
    at::Tensor x, targets, teacher;
  };
  Rows asked_rows(const TrainBatch& batch, bool taught) const;

  TrainCompany company_;
  DistillationConfig distillation_;
  double evenness_;
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
  AdamW optimiser_;
};

}  // namespace pare
