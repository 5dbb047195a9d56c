#pragma once
// Another model to learn from: beside the targets, what it thinks of every other answer.
//   loss = (1 - w) CE(p, target) + w τ² KL(q_τ ‖ p_τ),   q_τ, p_τ: softmax of the teacher's and the own logits over τ
// In pieces, as the cross-entropy is: the logits of all tokens never exist at once, neither the own nor the teacher's.

#include <ATen/core/Tensor.h>

#include <string>

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

struct Distilled {  // what a teacher's part of the loss needs to know
  at::Tensor x;     // what the teacher's head reads, [rows, its width]
  const LossHead& head;
  double weight = 0.5, temperature = 1;
};

// As cross_entropy in loss.h, of the loss above.
LossParts distilled_loss(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, const Distilled& teacher,
                         int64_t piece, double scale, const HeadGradients& gradients);

}  // namespace pare
