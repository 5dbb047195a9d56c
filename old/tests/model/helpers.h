#pragma once
// Small models for tests: an Architecture from JSON text, weights as tensors that a test can change.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "pare/arch/architecture_json.h"
#include "pare/model/cache.h"
#include "pare/model/executor.h"
#include "pare/model/init.h"

namespace pare::test {

using Tensors = std::map<std::string, at::Tensor>;

inline Architecture parse(const std::string& text) {
  return architecture_from_json(nlohmann::json::parse(text), "test");
}

inline Tensors generic_tensors(const Architecture& architecture, uint64_t seed = 1) {
  Tensors tensors;
  for (const auto& [name, weight] : random_weights(architecture, seed, Dtype::f64, Draw::generic)) {
    tensors[name] = weight.load();
  }
  return tensors;
}

inline Weights as_weights(const Tensors& tensors) {
  Weights weights;
  for (const auto& [name, tensor] : tensors) {
    weights[name] =
        Weight::leaf(name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), [tensor] { return tensor.clone(); });
  }
  return weights;
}

using Loads = std::map<std::string, std::atomic<int>>;

// The same weights, and how often each is loaded from now on.
inline Weights counted(const Weights& weights, Loads& loads) {
  Weights counting;
  for (const auto& [name, weight] : weights) {
    counting[name] = Weight::made(name, weight.dtype(), weight.shape(), {weight},
                                  [&count = loads[name]](std::vector<at::Tensor>& in) {
                                    ++count;
                                    return in[0];
                                  });
  }
  return counting;
}

inline Executor double_model(const Architecture& architecture, const Tensors& tensors) {
  return Executor({architecture, as_weights(tensors)}, at::kDouble);
}

inline Inputs random_inputs(const Architecture& a, int64_t batch, int64_t tokens, uint64_t seed = 7) {
  at::manual_seed(seed);
  Inputs inputs;
  if (a.embedding.patch) {
    const Patch& patch = *a.embedding.patch;
    inputs.pixels = at::randn({batch, patch.channels, patch.image, patch.image}, at::kDouble);
    return inputs;
  }
  inputs.ids = at::randint(a.vocab, {batch, tokens}, at::kLong);
  if (a.embedding.types > 0) {
    inputs.types = at::randint(a.embedding.types, {batch, tokens}, at::kLong);
  }
  return inputs;
}

// What the model says: logits, or the hidden states of an encoder.
inline at::Tensor answer_of(const Outputs& outputs) {
  return outputs.logits.defined() ? outputs.logits : outputs.hidden;
}

// max |a - b| / max |b - row mean of b|: the relative logit error.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  const double difference = (a - b).abs().max().item<double>();
  const at::Tensor spread = b.size(-1) > 1 ? b - b.mean(-1, true) : b;
  return difference == 0 ? 0 : difference / spread.abs().max().item<double>();  // a dead model has no spread
}

// The same for all that a model says: logits, or the hidden states of an encoder, and what it says of a sequence
// besides.
inline double relative_error(const Outputs& a, const Outputs& b) {
  double worst = relative_error(answer_of(a).to(at::kDouble), answer_of(b));
  for (at::Tensor Outputs::*field : {&Outputs::pooled, &Outputs::sequence_logits}) {
    REQUIRE((a.*field).defined() == (b.*field).defined());
    if ((a.*field).defined()) {
      worst = std::max(worst, relative_error((a.*field).to(at::kDouble), b.*field));
    }
  }
  return worst;
}

inline at::Tensor run(const Architecture& architecture, const Tensors& tensors, const Inputs& inputs,
                      Taps* taps = nullptr) {
  return answer_of(double_model(architecture, tensors).forward(inputs, nullptr, taps));
}

}  // namespace pare::test
