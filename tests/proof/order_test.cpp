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

// ---- the scale of each neuron

namespace {

Pair with_neurons(const std::string& mlp) {
  return pair_of(R"({"width": 12, "vocab": 23, "context": 9, "blocks": [{"repeat": 2, "attention": {"heads": 3,
      "head_width": 4, "norm": {"kind": "rms"}}, "mlp": )" +
                 mlp + R"(}], "final_norm": {"kind": "rms"}})");
}

// What a neuron reads by `slot` times its factor, what it writes divided by the factor's power.
void scale_neurons(Pair& pair, const std::string& slot, const at::Tensor& factors, double power = 1) {
  for (auto& [name, tensor] : pair.tb) {
    if (name.ends_with("mlp." + slot + ".weight")) {
      tensor = tensor * factors.unsqueeze(1);
    } else if (name.ends_with("mlp." + slot + ".bias")) {
      tensor = tensor * factors;
    } else if (name.ends_with("mlp.down.weight")) {
      tensor = tensor / factors.pow(power);
    }
  }
}

void mix_neurons(Pair& pair, const at::Tensor& order) {
  for (auto& [name, tensor] : pair.tb) {
    if (name.find("mlp.") != std::string::npos && name.find("norm") == std::string::npos &&
        !name.ends_with("down.bias")) {
      tensor = tensor.index_select(name.ends_with("down.weight") ? 1 : 0, order).contiguous();
    }
  }
}

double apart(const Pair& pair) {
  const Inputs inputs = random_inputs(pair.a, 3, 8);
  return relative_error(run(pair.b, pair.tb, inputs), run(pair.a, pair.ta, inputs));
}

}  // namespace

TEST_CASE("neurons with factors of their own are the same function, where an activation lets them through") {
  at::manual_seed(7);
  const at::Tensor positive = at::exp(at::randn({20}, at::kDouble)), mixed = at::randperm(20, at::kLong);
  const at::Tensor any = positive * at::where(at::rand({20}, at::kDouble) < 0.5, -1.0, 1.0);
  struct Case {
    const char *mlp, *slot;
    at::Tensor factors;
    double power;
  };
  for (const Case& c : std::vector<Case>{
           {R"({"width": 20, "activation": "relu", "bias": {"up": true, "down": true}})", "up", positive, 1},
           {R"({"width": 20, "activation": "relu_squared"})", "up", positive, 2},
           {R"({"width": 20, "activation": "gelu", "gated": true, "bias": {"up": true, "gate": true}})", "up", any, 1},
           {R"({"width": 20, "activation": "relu", "gated": true, "norm": {"kind": "rms"}})", "gate", positive, 1},
       }) {
    CAPTURE(c.mlp);
    for (const bool moved : {false, true}) {
      Pair pair = with_neurons(c.mlp);
      scale_neurons(pair, c.slot, c.factors, c.power);
      if (moved) {
        mix_neurons(pair, mixed);
      }
      REQUIRE(apart(pair) < 1e-12);
      for (const at::ScalarType dtype : every_type) {
        CAPTURE(std::string(at::toString(dtype)));
        const Proof proof = stored(pair, dtype);
        CHECK_MESSAGE(proof.complete, why(proof));
        CHECK(relation(proof, std::string("blocks.1.mlp.") + c.slot + ".weight").how == How::scaled);
      }
      for (const auto& [name, tensor] : pair.tb) {  // nothing of it can be moved unseen
        CAPTURE(name);
        Pair disturbed = pair;
        disturbed.tb[name] = tensor.clone();
        disturbed.tb[name].flatten()[tensor.abs().argmax().item<int64_t>()].mul_(1 + 1e-9);
        CHECK_FALSE(proof_of(disturbed).complete);
        if (name.find("mlp.") != std::string::npos) {
          disturbed.tb[name] = tensor.clone();
          disturbed.tb[name].select(name.ends_with("down.weight") ? 1 : 0, 3).mul_(1.5);
          CHECK_FALSE(proof_of(disturbed).complete);
        }
      }
    }
  }
}

// A factor so small that a feature falls below the smallest number of the type: its rounding, times what the factor is
// taken back by, would explain that it is gone.
TEST_CASE("a factor hides nothing below the smallest number of a type") {
  Pair pair = with_neurons(R"({"width": 20, "activation": "relu"})");
  for (Tensors* tensors : {&pair.ta, &pair.tb}) {
    for (auto& [name, tensor] : *tensors) {
      tensor = tensor.to(at::kHalf).to(at::kDouble);
    }
    for (const char* block : {"blocks.0.mlp.", "blocks.1.mlp."}) {
      tensors->at(std::string(block) + "up.weight")[3].fill_(1.0);
      tensors->at(std::string(block) + "down.weight").select(1, 3).fill_(0x1p-10);
    }
  }
  at::Tensor factors = at::ones({20}, at::kDouble);
  factors[3] = 0x1p-20;
  scale_neurons(pair, "up", factors);
  const Proof control = proof_of(pair, at::kHalf);
  CHECK_MESSAGE(control.complete, why(control));
  pair.ta.at("blocks.0.mlp.up.weight")[3][5] = 0x1p-6;
  pair.tb.at("blocks.0.mlp.up.weight")[3][5] = 0x1p-26;
  CHECK(rounded(pair.tb, at::kHalf).at("blocks.0.mlp.up.weight")[3][5].item<double>() == 0);
  CHECK_FALSE(proof_of(pair, at::kHalf).complete);
  CHECK(proof_of(pair).complete);
}

TEST_CASE("a factor that the activation sees, or a sign, is a difference") {
  at::manual_seed(8);
  at::Tensor factors = at::exp(at::randn({20}, at::kDouble));
  for (const char* mlp : {R"({"width": 20, "activation": "gelu"})", R"({"width": 20, "activation": "silu"})"}) {
    Pair pair = with_neurons(mlp);
    scale_neurons(pair, "up", factors);
    CHECK(apart(pair) > 1e-3);
    CHECK_FALSE(proof_of(pair).complete);
  }
  Pair gate = with_neurons(R"({"width": 20, "activation": "gelu", "gated": true})");
  scale_neurons(gate, "gate", factors);
  CHECK(apart(gate) > 1e-3);
  CHECK_FALSE(proof_of(gate).complete);
  factors[4].mul_(-1);
  Pair sign = with_neurons(R"({"width": 20, "activation": "relu"})");
  scale_neurons(sign, "up", factors);
  CHECK(apart(sign) > 1e-6);
  CHECK_FALSE(proof_of(sign).complete);
  Pair squared = with_neurons(R"({"width": 20, "activation": "relu_squared"})");
  scale_neurons(squared, "up", factors.abs(), 1);
  CHECK(apart(squared) > 1e-6);
  CHECK_FALSE(proof_of(squared).complete);
}
