// Neurons and heads that changed places, in every type; and what only looks like it.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "tests/proof/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

const char* const plain =
    R"({"width": 16, "vocab": 40, "context": 9, "blocks": [{"repeat": 2,
        "attention": {"heads": 8, "kv_heads": 4, "head_width": 4, "rope": {"theta": 100}, "norm": {"kind": "rms"},
                      "bias": {"query": true, "key": true, "value": true, "output": true}},
        "mlp": {"width": 40, "activation": "gelu", "gated": true, "norm": {"kind": "rms"},
                "bias": {"up": true, "gate": true, "down": true}}}], "final_norm": {"kind": "rms"}})";

// Units of so many entries each, along an axis.
at::Tensor permuted(const at::Tensor& tensor, int64_t axis, const at::Tensor& order) {
  const int64_t entries = tensor.size(axis) / order.numel();
  const at::Tensor index = order.unsqueeze(1) * entries + at::arange(entries, at::kLong);
  return tensor.index_select(axis, index.flatten());
}

void change_places(Pair& pair, const at::Tensor& neurons, const at::Tensor& heads) {
  for (auto& [name, tensor] : pair.tb) {
    const auto is = [&name = name](const char* text) { return name.find(text) != std::string::npos; };
    if (is("mlp.up") || is("mlp.gate")) {
      tensor = permuted(tensor, 0, neurons);
    } else if (is("mlp.down.weight")) {
      tensor = permuted(tensor, 1, neurons);
    } else if (is("attention.query.") || is("attention.key.") || is("attention.value.")) {
      tensor = permuted(tensor, 0, heads);
    } else if (is("attention.output.weight")) {
      tensor = permuted(tensor, 1, heads);
    }
  }
}

Pair in_other_places(int64_t width = 16) {
  Architecture architecture = parse(plain);
  architecture.width = width;
  Pair pair = pair_of(architecture);
  at::manual_seed(4);
  const at::Tensor neurons = at::randperm(40, at::kLong);
  change_places(pair, neurons, at::tensor({2, 0, 3, 1}, at::kLong));
  return pair;
}

Proof stored(const Pair& pair, at::ScalarType dtype) {
  return prove({pair.a, as_weights(pair.ta)}, {pair.b, as_weights(rounded(pair.tb, dtype))}, at::kCPU);
}

}  // namespace

TEST_CASE("neurons and heads in another order are the same function, in all four types") {
  for (const at::ScalarType dtype : every_type) {
    CAPTURE(std::string(at::toString(dtype)));
    const Pair pair = in_other_places();
    const Proof proof = stored(pair, dtype);
    CHECK_MESSAGE(proof.complete, why(proof));
    CHECK_FALSE(proof.identical);
    for (const char* name : {"blocks.0.mlp.up.weight", "blocks.0.mlp.gate.bias", "blocks.1.mlp.down.weight",
                             "blocks.1.attention.query.weight", "blocks.0.attention.output.weight"}) {
      CHECK(relation(proof, name).how == How::reordered);
      CHECK(relation(proof, name).residual <= 1 + 1e-6);
    }
    // One element that is another is seen in each of them.
    for (const auto& [name, tensor] : pair.tb) {
      CAPTURE(name);
      Pair moved = pair;
      moved.tb[name] = tensor.clone();
      moved.tb[name].flatten()[tensor.numel() / 2].mul_(1 + 4 * unit_roundoff(dtype_of(dtype)));
      CHECK_FALSE(stored(moved, dtype).complete);
    }
  }
}

TEST_CASE("with a gain folded as well") {
  Pair pair = in_other_places();
  for (const char* name : {"blocks.0.mlp.up.weight", "blocks.0.mlp.gate.weight"}) {
    pair.tb[name] = pair.tb.at(name) * pair.ta.at("blocks.0.mlp.norm.weight");
  }
  pair.tb["blocks.0.mlp.norm.weight"] = at::ones({16}, at::kDouble);
  const Proof proof = proof_of(pair);
  CHECK_MESSAGE(proof.complete, why(proof));
}

TEST_CASE("what stays behind when the rest changes places is a difference") {
  for (const std::string name : {"blocks.0.mlp.up.bias", "blocks.0.mlp.gate.weight", "blocks.0.mlp.down.weight",
                                 "blocks.0.attention.query.bias", "blocks.1.attention.value.weight"}) {
    CAPTURE(name);
    for (const int64_t width : {16, 4096}) {  // a neuron is known by what it reads: in a wide one by little else
      Pair pair = in_other_places(width);
      pair.tb[name] = pair.ta.at(name);
      CHECK_FALSE(proof_of(pair).complete);
    }
  }
}

TEST_CASE("heads that ALiBi tells apart stay where they are, neurons of one kind may go anywhere") {
  Pair pair = in_other_places();
  for (Architecture* a : {&pair.a, &pair.b}) {
    for (Block& block : a->blocks) {
      block.attention.rope.reset();
      block.attention.alibi = Alibi{};
    }
  }
  CHECK_FALSE(proof_of(pair).complete);

  Pair alike = pair_of(plain);
  for (auto& [name, tensor] : alike.ta) {
    if (name.find("mlp.up") != std::string::npos || name.find("mlp.gate") != std::string::npos) {
      tensor.narrow(0, 5, 3).zero_();  // dead
      tensor.select(0, 9).copy_(tensor.select(0, 8));
    }
    if (name.find("mlp.down.weight") != std::string::npos) {
      tensor.select(1, 9).copy_(tensor.select(1, 8));
    }
  }
  alike.tb = alike.ta;
  change_places(alike, at::arange(39, -1, -1, at::kLong), at::arange(4, at::kLong));
  const Proof proof = proof_of(alike);
  CHECK_MESSAGE(proof.complete, why(proof));
}
