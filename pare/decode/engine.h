#pragma once
// One token on a CPU, as fast as its weights can be read: a plan that is made once and a step that only runs it. It
// computes what the Executor does in float32, with the same tensors and the same cache, which prefill fills.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pare/decode/loaded_model.h"

namespace pare {

// What the engine does not run, in words: who decodes such a model leaves it to the Executor.
std::optional<std::string> engine_lacks(const Architecture& architecture);

class Engine {
 public:
  // Of an Architecture that lacks nothing, on that many threads: vectors in float32, matrices in float32, bfloat16 or
  // float16. The model outlives it.
  Engine(const LoadedModel& model, int threads);
  ~Engine();

  // The token after those in the cache, which then holds it too; logits for each token of the vocabulary, which stay
  // until the next step.
  std::span<const float> step(int64_t id, Cache& cache);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
