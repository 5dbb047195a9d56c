#pragma once
// One Architecture turned into another while it is trained: what differs is mixed, (1 - t) old + t new, with t from 0
// to 1 over some steps (pare/model/blend.h says what each mixture is), and then only the new is left.
// pare/algebra/morph_plan.h says where everything goes then.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "pare/algebra/morph_plan.h"
#include "pare/checkpoint/model.h"
#include "pare/model/blend.h"
#include "pare/ranks/communicator.h"

namespace pare {

// How far a morph of so many steps is, from 0 to 1. Fast at first and slow at the end, 1 - (1 - s)²: without the last
// of a norm nothing keeps the stream small, and that is what has to be learned.
double morph_t(int64_t step, int64_t steps);

class Morph {
 public:
  using Tensors = std::map<std::string, at::Tensor>;
  // `start`: a model of plan.from. Of several ranks each sees as many tokens as the others: what is measured is
  // measured over all of them.
  Morph(MorphPlan plan, int64_t steps, const Model& start, at::Device device, const Communicator& ranks = {});

  const MorphPlan& plan() const { return plan_; }
  const Blend& blend() const { return blend_; }
  int64_t steps() const { return steps_; }
  double t(int64_t step) const { return morph_t(step, steps_); }

  // Between two steps: t of the next, and the constants of what was seen in the last, a running mean.
  void go_to(int64_t step) const;
  // `stopped`: above zero where the step was a bad one, of which nothing is taken on.
  void remeasure(const Tensors& weights, const at::Tensor& stopped) const;

  // How unlike in size the tokens were that the norms saw in the last forward pass, with its graph; undefined without
  // norms. Taken, it is gone.
  at::Tensor take_unevenness() const;

  // The constants, "morph.NAME.constant", to be stored and put back.
  Tensors state() const;
  void restore(const Weights& state) const;

  // The new model, of the weights at t = 1, in that type; and what an optimiser remembers of them ("NAME.mean",
  // "NAME.square"), as it would remember it of the new ones: with p' = s p a gradient is 1/s of what it was.
  Model finished(const Weights& weights, at::ScalarType type) const;
  Weights finished_moments(const Weights& weights, const Weights& moments) const;

 private:
  struct Factors;
  Factors factors(const Weights& weights) const;
  Weights finished_weights(Weights weights, const Factors& factors, double power) const;

  MorphPlan plan_;
  int64_t steps_;
  Communicator ranks_;
  Blend blend_;
  at::Tensor pace_;  // how much of a new measurement the constants take on
};

// The same function as a model of plan.from: zero biases, an untied head, and the neurons that stay in front.
Model morph_start(const MorphPlan& plan, const Model& source);

}  // namespace pare
