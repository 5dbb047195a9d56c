#pragma once
// What a pass did to a model, as its answers show it.

#include "pare/rewrite/pipeline.h"
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

// A pass that by default does only what saves, or what loses nothing, is asked for all that it can.
inline PassCall eager_call(const Pass& pass) {
  Options options;
  for (const PassOption& option : pass.options) {
    if (option.fallback == "saving") {
      options[std::string(option.name)] = "all";
    } else if (option.name == "keep") {
      options[std::string(option.name)] = "k";
    }
  }
  return call_of(pass, options);
}

}  // namespace pare::test
