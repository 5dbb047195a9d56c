#pragma once
// Another model to learn from (loss.h): what its head reads of the same batch, and its head.

#include <ATen/core/Tensor.h>

#include "pare/checkpoint/model_folder.h"
#include "pare/model/executor.h"
#include "pare/train/config.h"
#include "pare/train/loss.h"

namespace pare {

class Teacher {
 public:
  Teacher(const Model& model, at::ScalarType dtype, at::Device device);
  const Executor& executor() const { return executor_; }
  const LossHead& head() const { return head_; }

 private:
  Executor executor_;
  LossHead head_;
};

// InputError where it answers other questions than the configuration asks, or cannot read as much.
void check_teacher(const TrainConfig& config, const Architecture& student, const Architecture& teacher);

}  // namespace pare
