#pragma once
// One token on a GPU, by kernels of our own: a plan that is made once and handed over whole (pare/cuda/device_step.h).
// It computes what the Executor does, with the same tensors and the same cache, which prefill fills; sums and vectors
// are float32.

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "pare/cuda/device_step.h"
#include "pare/decode/engine.h"

namespace pare {

// What it does not run, in words, of weights of that type: who decodes such a model leaves it to the Executor.
std::optional<std::string> device_engine_lacks(const Architecture& architecture, at::ScalarType type);

// Where plans are run.
class StepRunner {
 public:
  struct Answer {
    int64_t likeliest = 0;          // the first of those
    float most = 0;                 // its logit
    const float* logits = nullptr;  // on the host, if they were asked for; they stay until the next step
  };
  virtual ~StepRunner() = default;
  // Another plan. Only what it points to on the device stays there.
  virtual void take(const device_step::StepList& plan) = 0;
  virtual Answer run(int64_t id, int64_t length, bool logits) = 0;
};

// On a GPU; null where this build has no kernels, and says nothing.
std::unique_ptr<StepRunner> device_runner(at::Device device);

class DeviceEngine {
 public:
  // Of an Architecture that lacks nothing, all of whose tensors have one type. The model outlives it.
  DeviceEngine(const LoadedModel& model, std::unique_ptr<StepRunner> runner);
  ~DeviceEngine();

  // The token after those in the cache, which then holds it too.
  StepRunner::Answer step(int64_t id, Cache& cache, bool logits);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
