// MLPs and first layers in another form: neurons as heads, a skip inside the neurons, a table of the first projections.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "tests/proof/forms.h"

using namespace pare;
using namespace pare::test;

TEST_CASE("form: neurons as heads") {
  const auto json = [](const std::string& mlp) {
    return R"({"width": 8, "vocab": 40, "context": 9, "blocks": [{"attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms"}},
        "mlp": {"width": 20, "norm": {"kind": "rms"}, )" +
           mlp + R"(}}], "final_norm": {"kind": "rms"}})";
  };
  const std::string prefix = "blocks.0.mlp.";
  const auto lowered = [&](const std::string& mlp, bool shared, double slope, bool biased) {
    Pair pair = pair_of(json(mlp));
    const DenseMlp dense = std::get<DenseMlp>(pair.a.blocks[0].mlp->kind);
    const auto with_bias = [&](const std::string& name) {
      const at::Tensor bias = biased ? pair.ta.at(prefix + name + ".bias") : at::zeros({20}, at::kDouble);
      return at::cat({pair.ta.at(prefix + name + ".weight"), bias.unsqueeze(1)}, 1);
    };
    pair.tb[prefix + "query.weight"] = dense.gated ? with_bias("gate") : with_bias("up") * slope;
    if (!shared) {
      pair.tb[prefix + "value.weight"] = with_bias("up");
    }
    pair.tb[prefix + "output.weight"] = pair.ta.at(prefix + "down.weight") / (shared ? slope : 1);
    if (dense.bias.down) {
      pair.tb[prefix + "output.bias"] = pair.ta.at(prefix + "down.bias");
    }
    for (const char* gone : {"up.weight", "up.bias", "gate.weight", "gate.bias", "down.weight", "down.bias"}) {
      pair.tb.erase(prefix + gone);
    }
    pair.b.blocks[0].mlp->kind = NeuronHeads{20, shared, dense.bias.down};
    return pair;
  };
  check_form(lowered(R"("activation": "silu", "bias": {"up": true, "down": true})", true, 1, true));
  check_form(lowered(R"("activation": "silu")", true, 1, false));
  check_form(lowered(R"("activation": "quick_gelu", "bias": {"up": true})", true, 1.702, true));
  check_form(lowered(R"("activation": "quick_gelu", "bias": {"up": true})", false, 1.702, true));
  check_form(lowered(R"("activation": "sigmoid", "gated": true, "bias": {"up": true, "gate": true})", false, 1, true));
  // An approximation is none.
  Pair close = lowered(R"("activation": "gelu", "bias": {"up": true})", true, 1.702, true);
  CHECK_FALSE(proof_of(close).complete);
}

namespace {

const char* const skipped =
    R"({"width": 6, "vocab": 40, "context": 9, "embedding": {"position": "learned"}, "blocks": [{"repeat": 2,
        "attention": {"heads": 2, "head_width": 3}, "mlp": {"width": 20, "activation": "relu", "bias": {"up": true, "down": true}}}]})";

// In the reference W₂ Π_J W₁ = -I for J the first eight neurons; in the candidate those have the opposite sign.
Pair absorbed(const std::string& json) {
  Pair pair = pair_of(json);
  for (int64_t n = 0; n < 2; ++n) {
    const std::string prefix = fmt::format("blocks.{}.mlp.", n);
    at::Tensor up = pair.ta.at(prefix + "up.weight").clone(), down = pair.ta.at(prefix + "down.weight").clone();
    down.narrow(1, 0, 8).copy_(-at::linalg_pinv(up.narrow(0, 0, 8)));
    pair.ta[prefix + "up.weight"] = up;
    pair.ta[prefix + "down.weight"] = pair.tb[prefix + "down.weight"] = down;
    at::Tensor flipped = up.clone(), bias = pair.ta.at(prefix + "up.bias").clone();
    flipped.narrow(0, 0, 8).neg_();
    pair.tb[prefix + "down.bias"] =
        pair.ta.at(prefix + "down.bias") + at::mv(down.narrow(1, 0, 8), bias.narrow(0, 0, 8));
    bias.narrow(0, 0, 8).neg_();
    pair.tb[prefix + "up.weight"] = flipped;
    pair.tb[prefix + "up.bias"] = bias;
    pair.b.blocks[n].mlp->skip = false;
  }
  return pair;
}

std::string with_activation(std::string json, const std::string& name) {
  return json.replace(json.find("relu"), 4, name);
}

}  // namespace

TEST_CASE("form: a skip that the neurons took in") {
  for (const char* activation : {"relu", "gelu", "silu", "gelu_tanh", "quick_gelu"}) {
    CAPTURE(activation);
    const Pair pair = absorbed(with_activation(skipped, activation));
    check_form(pair, /*narrow=*/false);
  }
  SUBCASE("the premise has to hold") {
    Pair pair = absorbed(skipped);
    for (Tensors* tensors : {&pair.ta, &pair.tb}) {
      tensors->at("blocks.0.mlp.down.weight") = tensors->at("blocks.0.mlp.down.weight") * 1.001;
      (*tensors)["blocks.0.mlp.down.bias"] = at::zeros({6}, at::kDouble);
    }
    pair.tb["blocks.0.mlp.down.bias"] = at::mv(pair.ta.at("blocks.0.mlp.down.weight").narrow(1, 0, 8),
                                               pair.ta.at("blocks.0.mlp.up.bias").narrow(0, 0, 8));
    CHECK(distance(pair) > 1e-6);
    const Proof proof = proof_of(pair);
    CHECK_FALSE(proof.complete);
    CHECK(proof.unexplained.contains("blocks.0.mlp.down.weight"));
  }
  SUBCASE("other activations have no such neurons, and a norm sees the skip") {
    CHECK_FALSE(proof_of(absorbed(with_activation(skipped, "tanh"))).complete);
    CHECK_FALSE(proof_of(absorbed(with_activation(skipped, "relu_squared"))).complete);
  }
  SUBCASE("behind a norm that stands after the sum, and not behind one before it") {
    std::string normed = skipped;
    normed.insert(normed.find("\"activation\""), R"("norm": {"kind": "rms", "place": "post"}, )");
    check_form(absorbed(normed), /*narrow=*/false);
    normed.replace(normed.find("post"), 4, "pre");
    const Pair pair = absorbed(normed);
    CHECK(distance(pair) > 1e-6);
    CHECK_FALSE(proof_of(pair).complete);
  }
  SUBCASE("and stored as heads") {
    for (const auto& [activation, slope] : {std::pair("silu", 1.0), std::pair("quick_gelu", 1.702)}) {
      CAPTURE(activation);
      Pair pair = absorbed(with_activation(skipped, activation));
      for (int64_t n = 0; n < 2; ++n) {
        const std::string prefix = fmt::format("blocks.{}.mlp.", n);
        const at::Tensor up =
            at::cat({pair.tb.at(prefix + "up.weight"), pair.tb.at(prefix + "up.bias").unsqueeze(1)}, 1);
        pair.tb[prefix + "query.weight"] = up * slope;
        pair.tb[prefix + "output.weight"] = pair.tb.at(prefix + "down.weight") / slope;
        pair.tb[prefix + "output.bias"] = pair.tb.at(prefix + "down.bias");
        for (const char* gone : {"up.weight", "up.bias", "down.weight", "down.bias"}) {
          pair.tb.erase(prefix + gone);
        }
        pair.b.blocks[n].mlp->kind = NeuronHeads{20, true, true};
      }
      check_form(pair, /*narrow=*/false);
      pair.tb["blocks.1.mlp.query.weight"][3].neg_();  // one that should not have been turned round again
      CHECK(distance(pair) > 1e-6);
      CHECK_FALSE(proof_of(pair).complete);
    }
  }
  SUBCASE("in another basis afterwards") {
    Pair pair = absorbed(skipped);
    const at::Tensor theta = random_matrix(6, 4), back = at::linalg_inv(theta);  // of what the second block writes
    const std::string last = "blocks.1.mlp.";
    pair.tb[last + "down.weight"] = at::matmul(theta, pair.tb.at(last + "down.weight"));
    pair.tb[last + "down.bias"] = at::mv(theta, pair.tb.at(last + "down.bias"));
    pair.tb["head.weight"] = at::matmul(pair.tb.at("head.weight"), back);
    REQUIRE(distance(pair) < float64_noise);
    const Proof proof = proof_of(pair);
    CHECK_MESSAGE(proof.complete, why(proof));
  }
  SUBCASE("by neurons of its own") {
    for (const char* activation : {"relu", "gelu", "silu"}) {
      Pair pair = pair_of(with_activation(skipped, activation));
      const at::Tensor eye = at::eye(6, at::kDouble);
      for (int64_t n = 0; n < 2; ++n) {
        const std::string prefix = fmt::format("blocks.{}.mlp.", n);
        pair.tb[prefix + "up.weight"] = at::cat({pair.ta.at(prefix + "up.weight"), eye, -eye});
        pair.tb[prefix + "up.bias"] = at::cat({pair.ta.at(prefix + "up.bias"), at::zeros({12}, at::kDouble)});
        pair.tb[prefix + "down.weight"] = at::cat({pair.ta.at(prefix + "down.weight"), eye, -eye}, 1);
        Mlp& mlp = *pair.b.blocks[n].mlp;
        std::get<DenseMlp>(mlp.kind).width = 32;
        mlp.skip = false;
      }
      check_form(pair);
    }
  }
}

namespace {

// The reference's gated MLPs add their input; the candidate's have six neurons more, whose gate a constant holds open.
// 3d² + biases more, and up to a factor of each of these neurons, which is free.
Pair held_open(const std::string& activation, double at, double value, bool biased, double factor = 1) {
  std::string json = with_activation(skipped, activation);
  const std::string biases = R"("bias": {"up": true, "down": true})";
  json.replace(json.find(biases), biases.size(),
               biased ? R"("gated": true, "bias": {"up": true, "gate": true, "down": true})" : R"("gated": true)");
  Pair pair = pair_of(json);
  const at::Tensor eye = at::eye(6, at::kDouble), none = at::zeros({6}, at::kDouble);
  for (int64_t n = 0; n < 2; ++n) {
    const std::string prefix = fmt::format("blocks.{}.mlp.", n);
    const auto old = [&](const char* name) { return pair.ta.at(prefix + name); };
    pair.tb[prefix + "up.weight"] = at::cat({old("up.weight"), eye / value * factor});
    pair.tb[prefix + "gate.weight"] = at::cat({old("gate.weight"), at::zeros_like(eye)});
    pair.tb[prefix + "down.weight"] = at::cat({old("down.weight"), eye / factor}, 1);
    if (biased) {
      pair.tb[prefix + "up.bias"] = at::cat({old("up.bias"), none});
    }
    if (biased || at != 0) {
      const at::Tensor before = biased ? old("gate.bias") : at::zeros({20}, at::kDouble);
      pair.tb[prefix + "gate.bias"] = at::cat({before, none + at});
    }
    Mlp& mlp = *pair.b.blocks[n].mlp;
    DenseMlp& dense = std::get<DenseMlp>(mlp.kind);
    dense.width = 26;
    dense.bias.gate = biased || at != 0;
    mlp.skip = false;
  }
  return pair;
}

}  // namespace

TEST_CASE("form: a skip behind gates that a constant holds open") {
  struct Case {
    const char* activation;
    double at, value;
  };
  for (const auto& [activation, at, value] : {Case{"silu", 64, 64},
                                              {"gelu", 16, 16},
                                              {"gelu_tanh", 16, 16},
                                              {"quick_gelu", 32, 32},
                                              {"relu", 1, 1},
                                              {"sigmoid", 0, 0.5},
                                              {"tanh", 32, 1}}) {
    for (const bool biased : {false, true}) {
      CAPTURE(activation);
      CAPTURE(biased);
      check_form(held_open(activation, at, value, biased));
    }
  }
  check_form(held_open("silu", 64, 64, true, 64));  // I and I/64 exchanged
  for (const bool biased : {false, true}) {         // c as others may choose it
    CAPTURE(biased);
    check_form(held_open("silu", 1.2784645427610738, 1, biased));  // SiLU(c) = 1
    check_form(held_open("sigmoid", 2, 1 / (1 + std::exp(-2)), biased));
    check_form(held_open("tanh", -0.5, std::tanh(-0.5), biased));
  }
}

TEST_CASE("form: gates that a constant holds open") {  // cases of their own, which do not repeat the ones above
  SUBCASE("and no further than it is") {
    Pair pair = held_open("silu", 64, 64, true);
    pair.tb["blocks.1.mlp.gate.weight"][22][3].fill_(1e-3);  // where SiLU is straight, what it reads is passed on
    CHECK(distance(pair) > 1e-6);
    CHECK_FALSE(proof_of(pair).complete);
    const Pair nothing = held_open("relu", -1, 1, true);  // a gate that is shut
    CHECK(distance(nothing) > 1e-6);
    CHECK_FALSE(proof_of(nothing).complete);
    Pair unlike = held_open("silu", 64, 64, true);
    unlike.tb["blocks.0.mlp.gate.bias"][25].fill_(32);
    CHECK(distance(unlike) > 1e-6);
    CHECK_FALSE(proof_of(unlike).complete);
    const Pair other = held_open("silu", 32, 64, true);
    CHECK(distance(other) > 1e-6);
    CHECK_FALSE(proof_of(other).complete);
  }
  SUBCASE("in another basis and another order afterwards") {
    Pair pair = held_open("silu", 64, 64, false);
    const at::Tensor theta = random_matrix(6, 4), back = at::linalg_inv(theta);  // of what the second block writes
    const std::string last = "blocks.1.mlp.";
    pair.tb[last + "down.weight"] = at::matmul(theta, pair.tb.at(last + "down.weight"));
    pair.tb["head.weight"] = at::matmul(pair.tb.at("head.weight"), back);
    const at::Tensor order = at::arange(25, -1, -1, at::kLong);
    for (const char* name : {"up.weight", "gate.weight", "gate.bias"}) {
      pair.tb[std::string("blocks.0.mlp.") + name] =
          pair.tb.at(std::string("blocks.0.mlp.") + name).index_select(0, order);
    }
    pair.tb["blocks.0.mlp.down.weight"] = pair.tb.at("blocks.0.mlp.down.weight").index_select(1, order);
    REQUIRE(distance(pair) < float64_noise);
    const Proof proof = proof_of(pair);
    CHECK_MESSAGE(proof.complete, why(proof));
  }
  SUBCASE("and stored as heads") {
    Pair pair = held_open("sigmoid", 0, 0.5, true);
    for (int64_t n = 0; n < 2; ++n) {
      const std::string prefix = fmt::format("blocks.{}.mlp.", n);
      const auto joined = [&](const std::string& name) {
        return at::cat({pair.tb.at(prefix + name + ".weight"), pair.tb.at(prefix + name + ".bias").unsqueeze(1)}, 1);
      };
      pair.tb[prefix + "query.weight"] = joined("gate");
      pair.tb[prefix + "value.weight"] = joined("up");
      pair.tb[prefix + "output.weight"] = pair.tb.at(prefix + "down.weight");
      pair.tb[prefix + "output.bias"] = pair.tb.at(prefix + "down.bias");
      for (const char* gone : {"up.weight", "up.bias", "gate.weight", "gate.bias", "down.weight", "down.bias"}) {
        pair.tb.erase(prefix + gone);
      }
      pair.b.blocks[n].mlp->kind = NeuronHeads{26, false, true};
    }
    check_form(pair);
  }
}

TEST_CASE("form: a first layer as a table") {
  for (const char* norm : {"rms", "layer"}) {
    for (const bool tied : {false, true}) {
      CAPTURE(norm);
      CAPTURE(tied);
      Pair pair = pair_of(fmt::format(
          R"({{"width": 12, "vocab": 40, "context": 9, "head": {{"tied": {}}}, "embedding": {{"scale": 2.0}},
          "blocks": [{{"repeat": 2, "attention": {{"heads": 4, "kv_heads": 2, "head_width": 4, "norm": {{"kind": "{}", "offset": 1.0}},
          "rope": {{"theta": 100}}, "bias": {{"query": true, "key": true, "value": true}}}},
          "mlp": {{"width": 20, "activation": "gelu"}}}}]}})",
          tied, norm));
      const std::string first = "blocks.0.attention.";
      const at::Tensor x = pair.ta.at("embed.token.weight") * 2;
      const at::Tensor centred = std::string(norm) == "layer" ? without_mean(x, 1) : x;
      const at::Tensor in =
          centred / (centred.square().mean(1, true) + 1e-5).sqrt() * (pair.ta.at(first + "norm.weight") + 1);
      std::vector<at::Tensor> parts = {x};
      for (const char* name : {"query", "key", "value"}) {
        parts.push_back(at::matmul(in, pair.ta.at(first + name + ".weight").t()) + pair.ta.at(first + name + ".bias"));
        pair.tb.erase(first + name + ".weight");
        pair.tb.erase(first + name + ".bias");
      }
      pair.tb.erase(first + "norm.weight");
      if (!tied) {
        pair.tb.erase("embed.token.weight");
      }
      pair.tb["embed.table.weight"] = at::cat(parts, 1);
      pair.b.first_layer = FirstLayer::table;
      check_form(pair);
      Pair one = pair;
      one.tb["embed.table.weight"] = pair.tb.at("embed.table.weight").clone();
      one.tb["embed.table.weight"][17].mul_(1.01);
      CHECK(proof_of(one).strange_tokens.front() == 17);
    }
  }
}
