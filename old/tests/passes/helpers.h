#pragma once
// What a pass did to a model, as its answers show it.

#include "pare/passes/pass.h"
#include "tests/model/helpers.h"

namespace pare::test {

inline at::Tensor answer(const Model& model, const Inputs& inputs) {
  return answer_of(Executor(model, at::kDouble).forward(inputs));
}

// The relative error on random inputs.
inline double difference(const Model& before, const Model& after) {
  const Inputs inputs = random_inputs(before.architecture, 2, 7);
  return relative_error(answer(after, inputs), answer(before, inputs));
}

}  // namespace pare::test
