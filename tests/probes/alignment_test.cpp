// Checkpoints that differ by symmetries alone, by symmetries and noise, and by everything.

#include "pare/probes/alignment.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "tests/model/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

const char* const normed =
    R"({"width": 12, "vocab": 40, "context": 9, "blocks": [{"repeat": 2,
        "attention": {"heads": 4, "kv_heads": 2, "head_width": 4, "norm": {"kind": "rms", "gain": false}, "bias": {"query": true}},
        "mlp": {"width": 20, "activation": "relu", "norm": {"kind": "rms", "gain": false}, "bias": {"up": true}}}],
        "final_norm": {"kind": "rms", "gain": false}})";

at::Tensor of_units(const at::Tensor& x, int64_t axis, const at::Tensor& order) {
  const int64_t entries = x.size(axis) / order.numel();
  return x.index_select(axis, (order.unsqueeze(1) * entries + at::arange(entries, at::kLong)).flatten());
}

// Turned, heads and neurons in another order, each value head in another basis, each neuron in another scale.
Tensors disguised(const Tensors& tensors) {
  at::manual_seed(5);
  Tensors b = tensors;
  const at::Tensor turn = std::get<0>(at::linalg_qr(at::randn({12, 12}, at::kDouble)));
  const at::Tensor groups = at::tensor({1, 0}, at::kLong), heads = at::tensor({3, 2, 0, 1}, at::kLong);
  const at::Tensor neurons = at::randperm(20, at::kLong), scale = at::rand({20}, at::kDouble) + 0.5;
  const at::Tensor gauge = at::randn({4, 4}, at::kDouble) + 2 * at::eye(4, at::kDouble);
  for (int64_t n = 0; n < 2; ++n) {
    const std::string prefix = "blocks." + std::to_string(n) + ".";
    at::Tensor &up = b[prefix + "mlp.up.weight"], &bias = b[prefix + "mlp.up.bias"],
               &down = b[prefix + "mlp.down.weight"];
    up = of_units(up, 0, neurons) * scale.unsqueeze(1);
    bias = of_units(bias, 0, neurons) * scale;
    down = of_units(down, 1, neurons) / scale;
    for (const char* name : {"attention.query.weight", "attention.query.bias"}) {
      b[prefix + name] = of_units(b.at(prefix + name), 0, heads);
    }
    b[prefix + "attention.key.weight"] = of_units(b.at(prefix + "attention.key.weight"), 0, groups);
    at::Tensor value = of_units(b.at(prefix + "attention.value.weight"), 0, groups);
    b[prefix + "attention.value.weight"] = at::matmul(gauge, value.view({2, 4, 12})).reshape({8, 12});
    const at::Tensor output = of_units(b.at(prefix + "attention.output.weight"), 1, heads);
    b[prefix + "attention.output.weight"] =
        at::matmul(output.reshape({12, 4, 4}), at::linalg_inv(gauge)).reshape({12, 16});
  }
  for (auto& [name, tensor] : b) {
    if (name.ends_with("output.weight") || name.ends_with("down.weight")) {
      tensor = at::matmul(turn, tensor);
    } else if (name.ends_with(".weight")) {
      tensor = at::matmul(tensor, turn.t());
    }
  }
  return b;
}

Alignment aligned(const Tensors& a, const Tensors& b) {
  return align({parse(normed), as_weights(a)}, {parse(normed), as_weights(b)}, at::kCPU);
}

}  // namespace

TEST_CASE("what differs by symmetries alone is aligned to the last digits") {
  const Tensors a = generic_tensors(parse(normed), 1), b = disguised(a);
  const Inputs inputs = random_inputs(parse(normed), 2, 7);
  REQUIRE(relative_error(run(parse(normed), b, inputs), run(parse(normed), a, inputs)) < 1e-10);
  const Alignment found = aligned(a, b);
  CHECK(found.before > 0.5);
  CHECK_MESSAGE(found.after < 1e-10, found.after);
  double explained = 0;
  for (const AlignmentStep& step : found.steps) {
    explained += step.explained;
  }
  CHECK(explained == doctest::Approx(1));
}

TEST_CASE("what was changed besides is what is left, and other models stay other models") {
  const Tensors a = generic_tensors(parse(normed), 1);
  Tensors b = disguised(a);
  at::manual_seed(9);
  for (auto& [name, tensor] : b) {
    tensor = tensor + 0.01 * tensor.std() * at::randn_like(tensor);
  }
  const Alignment near = aligned(a, b);
  CHECK(near.after < 0.05);
  CHECK(near.after > 0.002);
  const Alignment far = aligned(a, generic_tensors(parse(normed), 2));
  CHECK(far.after > 0.6);
  const Alignment same = aligned(a, a);
  CHECK(same.before == 0);
  CHECK(same.after == 0);
}
