#pragma once
// Models that were never stored, and one with everything a mistake could be made in.

#include <ATen/ATen.h>

#include <string>

#include "pare/verify/questions.h"
#include "pare/verify/verify.h"
#include "tests/model/helpers.h"
#include "tests/support/helpers.h"

namespace pare::test {

inline Tensors rounded(const Tensors& tensors, at::ScalarType dtype) {
  Tensors result;
  for (const auto& [name, tensor] : tensors) {
    result[name] = tensor.is_floating_point() ? tensor.to(dtype) : tensor;
  }
  return result;
}

inline ModelFolder model_of(const Architecture& architecture, const Tensors& tensors,
                            at::ScalarType dtype = at::kDouble) {
  ModelFolder model;
  model.path = "in memory";
  model.family = "pare";
  model.model.architecture = architecture;
  model.model.weights = as_weights(rounded(tensors, dtype));
  model.dtype = dtype_of(dtype);
  return model;
}

// Square matrices, two heads, RoPE, biases, and gains stored as what is added to one.
inline Architecture rich_architecture() {
  return parse(R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2,
    "attention": {"heads": 2, "head_width": 6, "rope": {"theta": 100}, "norm": {"kind": "rms", "offset": 1.0},
                  "bias": {"value": true, "output": true}},
    "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms", "offset": 1.0}}}],
    "final_norm": {"kind": "rms", "offset": 1.0}})");
}

inline Verification verify_drawn(const ModelFolder& reference, const ModelFolder& candidate,
                                 const VerifyOptions& options = {}) {
  return verify(reference, candidate, {}, options);
}

}  // namespace pare::test
