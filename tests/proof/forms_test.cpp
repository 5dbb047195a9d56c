// The same function stored in another form: each written out here by plain algebra, run to see that it is the same, and
// proved; and each with something in it that is not.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/proof/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

constexpr double float64_noise = 1e-9;

double distance(const Pair& pair) {
  const Inputs inputs = random_inputs(pair.a, 3, 8);
  return relative_error(run(pair.b, pair.tb, inputs), run(pair.a, pair.ta, inputs));
}

// Proved in float64, float32 and narrow types, stored from exact numbers; and nothing of it can be moved unseen.
void check_form(const Pair& pair, bool narrow = true) {
  REQUIRE(distance(pair) < float64_noise);
  for (const at::ScalarType dtype : every_type) {
    if (!narrow && (dtype == at::kHalf || dtype == at::kBFloat16)) {
      continue;
    }
    CAPTURE(std::string(at::toString(dtype)));
    const Proof proof = prove({pair.a, as_weights(pair.ta)}, {pair.b, as_weights(rounded(pair.tb, dtype))}, at::kCPU);
    CHECK_MESSAGE(proof.complete, why(proof));
    CHECK_FALSE(proof.identical);
  }
  for (const auto& [name, tensor] : pair.tb) {
    if (!tensor.is_floating_point()) {
      continue;
    }
    CAPTURE(name);
    Pair moved = pair;
    const int64_t largest = tensor.abs().argmax().item<int64_t>();
    moved.tb[name] = tensor.clone();
    moved.tb[name].flatten()[largest].mul_(1.001);
    if (distance(moved) > float64_noise) {
      const Proof proof = proof_of(moved);
      CHECK_FALSE(proof.complete);
      CHECK_FALSE(proof.gaps.empty());
    }
    moved.tb[name] = tensor * -1.5;
    if (distance(moved) > float64_noise) {
      CHECK_FALSE(proof_of(moved).complete);
    }
  }
}

at::Tensor without_mean(const at::Tensor& x, int64_t axis) {
  return x - x.mean(axis, true);
}

bool ends(const std::string& name, const char* text) {
  return name.ends_with(text);
}

const char* const layer_normed =
    R"({"width": 12, "vocab": 23, "context": 9, "embedding": {"position": "learned"}, "blocks": [{"repeat": 2,
        "attention": {"heads": 3, "head_width": 4, "norm": {"kind": "layer", "bias": true},
                      "bias": {"query": true, "key": true, "value": true, "output": true}},
        "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "layer", "bias": true}, "bias": {"up": true, "down": true}}}],
        "final_norm": {"kind": "layer"}})";

void to_rms(Architecture& a) {
  for (Block& block : a.blocks) {
    block.attention.norm->kind = block.mlp->norm->kind = NormKind::rms;
  }
  a.final_norm->kind = NormKind::rms;
}

Pair centred(const std::string& json = layer_normed) {
  Pair pair = pair_of(json);
  to_rms(pair.b);
  for (auto& [name, tensor] : pair.tb) {
    if (name.starts_with("embed.")) {
      tensor = without_mean(tensor, 1);
    } else if (ends(name, "output.weight") || ends(name, "output.bias") || ends(name, "down.weight") ||
               ends(name, "down.bias")) {
      tensor = without_mean(tensor, 0);
    }
  }
  return pair;
}

}  // namespace

TEST_CASE("form: LayerNorm is RMSNorm where what writes the stream has no mean") {
  SUBCASE("all writers") {
    check_form(centred());
  }
  SUBCASE("the other way round") {
    Pair pair = centred();
    std::swap(pair.a, pair.b);
    std::swap(pair.ta, pair.tb);
    const Proof proof = proof_of(pair);
    CHECK_MESSAGE(proof.complete, why(proof));
  }
  SUBCASE("a writer that was forgotten, or none was centred") {
    for (const char* name : {"embed.token.weight", "embed.position.weight", "blocks.1.mlp.down.bias",
                             "blocks.0.attention.output.weight"}) {
      CAPTURE(name);
      Pair pair = centred();
      pair.tb[name] = pair.ta.at(name);
      CHECK(distance(pair) > 1e-6);
      const Proof proof = proof_of(pair);
      CHECK_FALSE(proof.complete);
      CHECK(proof.unexplained.contains(name));
    }
    Pair none = pair_of(layer_normed);
    to_rms(none.b);
    CHECK_FALSE(proof_of(none).complete);
  }
  SUBCASE("another epsilon, or one norm that stayed") {
    Pair pair = centred();
    pair.b.final_norm->epsilon = 1e-3;
    CHECK_FALSE(proof_of(pair).complete);
    pair = centred();
    pair.b.final_norm->kind = NormKind::layer;
    CHECK_FALSE(proof_of(pair).complete);  // the same function, but of both kinds there is no form
  }
  SUBCASE("a stream that a matrix reads keeps its mean") {
    Pair pair = centred();
    for (Architecture* a : {&pair.a, &pair.b}) {
      a->final_norm.reset();
    }
    pair.ta.erase("norm.weight");
    pair.tb.erase("norm.weight");
    CHECK(distance(pair) > 1e-6);
    CHECK_FALSE(proof_of(pair).complete);
  }
  SUBCASE("a tied head, behind a norm without gain and bias") {
    const std::string tied = R"({"width": 12, "vocab": 23, "context": 9, "head": {"tied": true},
        "blocks": [{"attention": {"heads": 3, "head_width": 4, "norm": {"kind": "layer"}},
        "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "layer"}}}], "final_norm": {"kind": "layer", "gain": false}})";
    check_form(centred(tied));
    Pair pair = pair_of(tied);  // with a gain it is another function
    for (Architecture* a : {&pair.a, &pair.b}) {
      a->final_norm->gain = true;
    }
    pair.ta = pair.tb = generic_tensors(pair.a);
    to_rms(pair.b);
    for (const char* name : {"blocks.0.attention.output.weight", "blocks.0.mlp.down.weight"}) {
      pair.tb[name] = without_mean(pair.ta.at(name), 0);
    }
    pair.tb["embed.token.weight"] = without_mean(pair.ta.at("embed.token.weight"), 1);
    CHECK(distance(pair) > 1e-6);
    CHECK_FALSE(proof_of(pair).complete);
  }
}

namespace {

const char* const rms_normed =
    R"({"width": 12, "vocab": 40, "context": 9, "embedding": {"position": "learned"}, "blocks": [{"repeat": 2,
        "attention": {"heads": 4, "kv_heads": 2, "head_width": 4, "norm": {"kind": "rms"}, "rope": {"theta": 100},
                      "bias": {"query": true, "key": true, "value": true, "output": true}},
        "mlp": {"width": 20, "activation": "silu", "gated": true, "norm": {"kind": "rms"}, "bias": {"down": true}}}],
        "final_norm": {"kind": "rms"}})";

// Gains folded, and everything turned by one matrix.
Pair turned(const at::Tensor& by) {
  Pair pair = pair_of(rms_normed);
  for (auto& [name, tensor] : pair.tb) {
    const std::string block = name.starts_with("blocks.") ? name.substr(0, 9) : "";
    if (name.starts_with("embed.")) {
      tensor = at::matmul(tensor, by.t());
    } else if (ends(name, "output.weight") || ends(name, "down.weight") || ends(name, "output.bias") ||
               ends(name, "down.bias")) {
      tensor = at::matmul(by, tensor);
    } else if (name == "head.weight") {
      tensor = at::matmul(tensor * pair.ta.at("norm.weight"), by.t());
    } else if (ends(name, "query.weight") || ends(name, "key.weight") || ends(name, "value.weight")) {
      tensor = at::matmul(tensor * pair.ta.at(block + "attention.norm.weight"), by.t());
    } else if (ends(name, "up.weight") || ends(name, "gate.weight")) {
      tensor = at::matmul(tensor * pair.ta.at(block + "mlp.norm.weight"), by.t());
    }
  }
  std::erase_if(pair.tb, [](const auto& entry) { return entry.first.ends_with("norm.weight"); });
  for (Block& block : pair.b.blocks) {
    block.attention.norm->gain = block.mlp->norm->gain = false;
  }
  pair.b.final_norm->gain = false;
  return pair;
}

at::Tensor rotation(int64_t size, uint64_t seed) {
  return std::get<0>(at::linalg_qr(random_matrix(size, seed)));
}

}  // namespace

TEST_CASE("form: a stream that only RMSNorms and matrices touch may be turned") {
  const Pair pair = turned(rotation(12, 3));
  check_form(pair);
  CHECK(relation(proof_of(pair), "head.weight").how == How::basis);
  CHECK_FALSE(proof_of(turned(random_matrix(12, 3))).complete);  // no rotation
  at::Tensor almost = rotation(12, 3);
  almost = almost * 1.0001;
  CHECK_FALSE(proof_of(turned(almost)).complete);
  Pair kept = turned(rotation(12, 3));  // a gain that knows the coordinates
  kept.b.final_norm->gain = true;
  kept.tb["norm.weight"] = kept.ta.at("norm.weight");
  CHECK(distance(kept) > 1e-6);
  CHECK_FALSE(proof_of(kept).complete);
}

namespace {

const char* const plain_heads =
    R"({"width": 12, "vocab": 40, "context": 9, "embedding": {"position": "learned"}, "blocks": [{"repeat": 2,
        "attention": {"heads": 4, "kv_heads": 2, "head_width": 4, "norm": {"kind": "rms"},
                      "bias": {"query": true, "key": true, "value": true, "output": true}},
        "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}}}], "final_norm": {"kind": "rms"}})";

// An identity block at the pivots of each key/value head, which the other factor takes in.
void shrink(Pair& pair, int64_t block, Slot slot, const std::vector<std::vector<int64_t>>& pivots) {
  const std::string prefix = fmt::format("blocks.{}.attention.", block);
  Attention& t = pair.b.blocks[static_cast<size_t>(block)].attention;
  const int64_t k = t.head_width, share = t.heads / t.kv_heads, width = pair.a.width;
  const bool of_value = slot == Slot::value;
  const std::string own = prefix + (of_value ? "value" : "key"), partner = prefix + (of_value ? "output" : "query");
  std::vector<at::Tensor> kept, places;
  at::Tensor bias = pair.tb.at(own + ".bias").clone(), other = pair.tb.at(partner + ".weight").clone();
  at::Tensor query_bias = of_value ? at::Tensor() : pair.tb.at(partner + ".bias").clone();
  for (int64_t g = 0; g < t.kv_heads; ++g) {
    const at::Tensor head = pair.tb.at(own + ".weight").narrow(0, g * k, k);
    const at::Tensor chosen = at::tensor(pivots[static_cast<size_t>(g)], at::kLong);
    const at::Tensor gauge = head.index_select(1, chosen);  // head = gauge [I at the pivots | rest]
    std::vector<int64_t> others;
    for (int64_t i = 0; i < width; ++i) {
      if (std::find(pivots[static_cast<size_t>(g)].begin(), pivots[static_cast<size_t>(g)].end(), i) ==
          pivots[static_cast<size_t>(g)].end()) {
        others.push_back(i);
      }
    }
    kept.push_back(at::linalg_solve(gauge, head.index_select(1, at::tensor(others, at::kLong))));
    places.push_back(chosen.to(at::kInt));
    at::Tensor part = bias.narrow(0, g * k, k);
    part.copy_(at::linalg_solve(gauge, part.clone()));
    for (int64_t h = g * share; h < (g + 1) * share; ++h) {
      if (of_value) {
        at::Tensor columns = other.narrow(1, h * k, k);
        columns.copy_(at::matmul(columns.clone(), gauge));
      } else {
        at::Tensor rows = other.narrow(0, h * k, k), entries = query_bias.narrow(0, h * k, k);
        rows.copy_(at::matmul(gauge.t(), rows.clone()));
        entries.copy_(at::matmul(gauge.t(), entries.clone()));
      }
    }
  }
  pair.tb[own + ".weight"] = at::stack(kept);
  pair.tb[own + ".pivot"] = at::stack(places);
  pair.tb[own + ".bias"] = bias;
  pair.tb[partner + ".weight"] = other;
  if (!of_value) {
    pair.tb[partner + ".bias"] = query_bias;
  }
  (of_value ? t.value : t.key) = Shrunk{};
}

}  // namespace

TEST_CASE("form: a pair without its identity block") {
  Pair pair = pair_of(plain_heads);
  shrink(pair, 0, Slot::value, {{3, 0, 7, 11}, {5, 1, 2, 9}});
  shrink(pair, 1, Slot::value, {{0, 1, 2, 3}, {8, 9, 10, 11}});
  shrink(pair, 1, Slot::key, {{2, 4, 6, 8}, {1, 3, 5, 7}});
  check_form(pair);
  SUBCASE("other pivots are another function, and other pivots of the same are not") {
    Pair wrong = pair;
    wrong.tb["blocks.0.attention.value.pivot"] = at::tensor({3, 0, 7, 10, 5, 1, 2, 9}, at::kInt).view({2, 4});
    CHECK_FALSE(proof_of(wrong).complete);
    Pair both = pair;
    both.a = pair.b;
    both.ta = pair.tb;
    both.b = pair.a;
    both.tb = pair.ta;
    shrink(both, 0, Slot::value, {{1, 2, 3, 4}, {5, 6, 7, 8}});
    shrink(both, 1, Slot::value, {{1, 2, 3, 4}, {5, 6, 7, 8}});
    const Proof proof = proof_of(both);
    CHECK_MESSAGE(proof.complete, why(proof));
  }
}

TEST_CASE("form: values from keys, keys from values, and inputs that are remembered") {
  const std::string square = R"({"width": 12, "vocab": 40, "context": 9, "blocks": [{"repeat": 2,
      "attention": {"heads": 3, "head_width": 4, "norm": {"kind": "rms"}, "rope": {"theta": 100},
                    "bias": {"key": true, "value": true}},
      "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}}}], "final_norm": {"kind": "rms"}})";
  Pair pair = pair_of(square);
  const std::string first = "blocks.0.attention.", second = "blocks.1.attention.";
  pair.b.blocks[0].attention.value = FromKey{};
  pair.tb[first + "value_from_key.weight"] =
      at::linalg_solve(pair.ta.at(first + "key.weight"), pair.ta.at(first + "value.weight"), /*left=*/false);
  pair.tb.erase(first + "value.weight");
  pair.b.blocks[1].attention.key = FromValue{};
  pair.tb[second + "key_from_value.weight"] =
      at::linalg_solve(pair.ta.at(second + "value.weight"), pair.ta.at(second + "key.weight"), /*left=*/false);
  pair.tb.erase(second + "key.weight");
  check_form(pair, /*narrow=*/false);
  Pair inputs = pair_of(square);
  inputs.b.blocks[0].attention.remembered = Remembered::inputs;
  CHECK(proof_of(inputs).complete);
}

TEST_CASE("form: collapsed heads") {
  const std::string json =
      R"({"width": 6, "vocab": 40, "context": 9, "embedding": {"position": "learned"}, "blocks": [{"repeat": 2,
      "attention": {"heads": 2, "kv_heads": 1, "head_width": 5, "norm": {"kind": "rms"},
                    "bias": {"query": true, "key": true, "value": true, "output": true}},
      "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}}}], "final_norm": {"kind": "rms"}})";
  Pair pair = pair_of(json);
  const std::string first = "blocks.0.attention.", second = "blocks.1.attention.";
  const auto of = [&](const std::string& name) { return pair.ta.at(name); };
  const at::Tensor key = of(first + "key.weight");
  pair.tb[first + "qk.weight"] = at::matmul(of(first + "query.weight").view({2, 5, 6}).transpose(1, 2), key);
  pair.tb[first + "qk.bias"] = at::matmul(of(first + "query.bias").view({2, 5}), key);
  for (const char* gone : {"query.weight", "query.bias", "key.weight", "key.bias"}) {
    pair.tb.erase(first + gone);
  }
  pair.b.blocks[0].attention.scores = Form::collapsed;
  pair.b.blocks[0].attention.bias.key = false;
  const at::Tensor value = of(second + "value.weight"), output = of(second + "output.weight");
  pair.tb[second + "vo.weight"] = at::matmul(value.t(), output.t().reshape({2, 5, 6}));
  pair.tb[second + "output.bias"] = of(second + "output.bias") + at::mv(output, of(second + "value.bias").repeat({2}));
  for (const char* gone : {"value.weight", "value.bias", "output.weight"}) {
    pair.tb.erase(second + gone);
  }
  pair.b.blocks[1].attention.values = Form::collapsed;
  pair.b.blocks[1].attention.bias.value = false;
  check_form(pair);
  SUBCASE("under a softcap a key's bias is seen") {
    for (Architecture* a : {&pair.a, &pair.b}) {
      a->blocks[0].attention.softcap = 2;
    }
    CHECK(distance(pair) > 1e-6);
    CHECK_FALSE(proof_of(pair).complete);
  }
}

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
    pair.b.blocks[static_cast<size_t>(n)].mlp->skip = false;
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
        Mlp& mlp = *pair.b.blocks[static_cast<size_t>(n)].mlp;
        std::get<DenseMlp>(mlp.kind).width = 32;
        mlp.skip = false;
      }
      check_form(pair);
    }
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
