#pragma once
// The gradients of a trainer against finite differences in float64, through the loss that is trained.

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <vector>

#include "pare/train/trainer.h"
#include "tests/model/helpers.h"

namespace pare::test {

inline TrainBatch random_batch(const Architecture& a) {
  TrainBatch batch{random_inputs(a, 2, 6), {}};
  const bool of_tokens = a.task == Task::causal_lm || a.task == Task::masked_lm;
  const int64_t answers = of_tokens ? a.vocab : a.head.classes.value_or(1);
  const std::vector<int64_t> tokens = {2, 6}, sequences = {2};
  const bool each = of_tokens || a.task == Task::token_classifier || a.task == Task::question_answering;
  batch.targets = at::randint(answers, each ? tokens : sequences, at::kLong);
  if (each) {
    batch.targets[0][1].fill_(no_target);
  }
  return batch;
}

// Generic, and so small that the loss is nearly straight over the distances that are measured: a block that is run four
// times with matrices of scale one has third derivatives of 1e9.
inline Tensors calm_tensors(const Architecture& a) {
  Tensors tensors = generic_tensors(a);
  for (const TensorSpec& spec : tensor_table(a)) {
    if (spec.shape.size() >= 2 && !spec.index) {
      tensors[spec.name].mul_(0.5);
    }
  }
  return tensors;
}

// One step of each of two trainers of the same model, bit for bit: one runs its layers again. Where a block is several
// layers that one adds them to what other batches gave, one by one, which rounds otherwise; not in bfloat16, which is
// added up elsewhere.
inline void check_same_step(Trainer& kept, Trainer& again, const std::vector<TrainBatch>& batches) {
  const auto same = [&](const std::vector<TrainBatch>& some, double allowed) {
    const StepMeasure expected = kept.measure(some), found = again.measure(some);
    CHECK(found.loss == expected.loss);
    CHECK(std::abs(found.gradient_norm - expected.gradient_norm) <= allowed * expected.gradient_norm);
    CHECK(expected.gradient_norm > 0);
    const std::map<std::string, at::Tensor> gradients = again.gradients();
    for (const auto& [name, gradient] : kept.gradients()) {
      CAPTURE(name);
      const double off = (gradients.at(name) - gradient).abs().max().item<double>();
      CHECK(off <= allowed * gradient.abs().max().item<double>());
    }
  };
  const Architecture& a = kept.executor().architecture();
  const bool wide = kept.executor().parameters().begin()->second.scalar_type() == at::kDouble;
  same({batches.front()}, 0);
  same(batches, layer_blocks(a).size() == a.blocks.size() ? 0 : wide ? 1e-11 : 1e-3);
}

inline void check_gradients(Trainer& trainer, const std::vector<TrainBatch>& batches) {
  trainer.measure(batches);
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, gradient] : trainer.gradients()) {
    gradients[name] = gradient.clone();
  }
  constexpr double step = 1e-5;
  for (const auto& [name, leaf] : trainer.executor().parameters()) {
    CAPTURE(name);
    const at::NoGradGuard no_grad;
    const at::Tensor start = leaf.clone();
    at::Tensor direction;
    const auto loss_at = [&](double distance) {
      leaf.copy_(start + distance * direction);
      const at::AutoGradMode grad(true);
      return trainer.measure(batches).loss;
    };
    // The kink of a ReLU between two points shows in the differences themselves: then another direction is taken.
    double near = 0, far = 1;
    for (int draw = 0; draw < 5 && std::abs(near - far) > 1e-6 * (1 + std::abs(near)); ++draw) {
      direction = at::randn_like(leaf);
      near = (loss_at(step) - loss_at(-step)) / (2 * step);
      far = (loss_at(2 * step) - loss_at(-2 * step)) / (4 * step);
    }
    leaf.copy_(start);
    const double expected = (4 * near - far) / 3;  // wrong by the fifth derivative times step^4
    const double found = (gradients.at(name) * direction).sum().item<double>();
    CHECK(std::abs(found - expected) < 2e-8 * (1 + std::abs(expected)));
  }
}

}  // namespace pare::test
