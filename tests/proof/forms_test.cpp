// The same function stored in another form: each written out here by plain algebra, run to see that it is the same, and
// proved; and each with something in it that is not.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pare/model/rope.h"
#include "tests/proof/forms.h"

using namespace pare;
using namespace pare::test;

namespace {

bool ends(const std::string& name, const char* text) {
  return name.ends_with(text);
}

const char* const layer_normed =
    R"({"width": 12, "vocab": 23, "context": 9, "embedding": {"position": "learned"}, "blocks": [{"repeat": 2,
        "attention": {"heads": 3, "head_width": 4, "norm": {"kind": "layer", "bias": true},
                      "bias": {"query": true, "key": true, "value": true, "output": true}},
        "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "layer", "bias": true}, "bias": {"up": true, "down": true}}}],
        "final_norm": {"kind": "layer"}})";

const char* const computed_positions =
    R"({"width": 12, "vocab": 23, "context": 9, "embedding": {"position": "sinusoidal"}, "blocks": [{
        "attention": {"heads": 3, "head_width": 4, "norm": {"kind": "layer"}},
        "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "layer"}}}], "final_norm": {"kind": "layer"}})";

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
  SUBCASE("positions that are computed become a table without its mean") {
    Pair pair = centred(computed_positions);
    pair.b.embedding.position = Position::learned;
    const at::Tensor at = at::arange(pair.a.context, at::kLong).unsqueeze(0);
    pair.tb["embed.position.weight"] = without_mean(sinusoidal_positions(at, pair.a.width, at::kDouble).squeeze(0), 1);
    check_form(pair);
    Pair stayed = centred(computed_positions);  // nobody took their mean off
    CHECK(distance(stayed) > 1e-6);
    const Proof proof = proof_of(stayed);
    CHECK_FALSE(proof.complete);
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
  Attention& t = pair.b.blocks[block].attention;
  const int64_t k = t.head_width, share = t.heads / t.kv_heads, width = pair.a.width;
  const bool of_value = slot == Slot::value;
  const std::string own = prefix + (of_value ? "value" : "key"), partner = prefix + (of_value ? "output" : "query");
  std::vector<at::Tensor> kept, places;
  at::Tensor bias = pair.tb.at(own + ".bias").clone(), other = pair.tb.at(partner + ".weight").clone();
  at::Tensor query_bias = of_value ? at::Tensor() : pair.tb.at(partner + ".bias").clone();
  for (int64_t g = 0; g < t.kv_heads; ++g) {
    const at::Tensor head = pair.tb.at(own + ".weight").narrow(0, g * k, k);
    const at::Tensor chosen = at::tensor(pivots[g], at::kLong);
    const at::Tensor gauge = head.index_select(1, chosen);  // head = gauge [I at the pivots | rest]
    std::vector<int64_t> others;
    for (int64_t i = 0; i < width; ++i) {
      if (std::find(pivots[g].begin(), pivots[g].end(), i) == pivots[g].end()) {
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

// Two rows of a value that are almost the same: in the gauge that cuts the identity block out, one rounding is much in
// the reference's coordinates, and little in the product, which is all that anything sees.
TEST_CASE("form: a pair without its identity block, of heads that almost lost their rank") {
  for (const double apart : {1e-6, 1e-10, 1e-13}) {
    CAPTURE(apart);
    Pair pair = pair_of(plain_heads);
    for (const char* name : {"blocks.0.attention.value.", "blocks.1.attention.key."}) {
      for (const char* kind : {"weight", "bias"}) {
        at::Tensor rows = pair.ta.at(std::string(name) + kind).clone();
        rows[0].copy_(rows[3] + apart * rows[0]);
        pair.ta[std::string(name) + kind] = pair.tb[std::string(name) + kind] = rows;
      }
    }
    shrink(pair, 0, Slot::value, {{3, 0, 7, 11}, {5, 1, 2, 9}});
    shrink(pair, 1, Slot::key, {{2, 4, 6, 8}, {1, 3, 5, 7}});
    REQUIRE(distance(pair) < float64_noise);
    const Proof proof = proof_of(pair);
    CHECK_MESSAGE(proof.complete, why(proof));
    for (const auto& [name, tensor] : pair.tb) {
      if (!tensor.is_floating_point() || name.find("attention") == std::string::npos) {
        continue;
      }
      CAPTURE(name);
      for (const double factor : {1 + 1e-11, 1.001, -1.5}) {
        Pair moved = pair;
        moved.tb[name] = tensor.clone();
        moved.tb[name].flatten()[tensor.abs().argmax().item<int64_t>()].mul_(factor);
        CHECK_FALSE((distance(moved) > 1e-12 && proof_of(moved).complete));
      }
    }
  }
}

TEST_CASE("form: computed positions become a table that is turned") {
  Pair pair = pair_of(R"({"width": 12, "vocab": 40, "context": 9, "embedding": {"position": "sinusoidal"}, "blocks": [{
      "attention": {"heads": 3, "head_width": 4, "norm": {"kind": "rms", "gain": false}},
      "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms", "gain": false}}}],
      "final_norm": {"kind": "rms", "gain": false}})");
  const at::Tensor by = rotation(12, 3), at = at::arange(9, at::kLong).unsqueeze(0);
  const at::Tensor positions = sinusoidal_positions(at, 12, at::kDouble).squeeze(0);
  for (auto& [name, tensor] : pair.tb) {
    const bool writes = ends(name, "output.weight") || ends(name, "down.weight");
    tensor = writes ? at::matmul(by, tensor) : at::matmul(tensor, by.t());
  }
  pair.b.embedding.position = Position::learned;
  pair.tb["embed.position.weight"] = at::matmul(positions, by.t());
  check_form(pair);
  pair.tb["embed.position.weight"] = positions;  // nobody turned them
  CHECK(distance(pair) > 1e-6);
  CHECK_FALSE(proof_of(pair).complete);
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

TEST_CASE("form: values from keys that both have without their identity block") {
  Pair pair = pair_of(R"({"width": 12, "vocab": 40, "context": 9, "blocks": [{
      "attention": {"heads": 3, "head_width": 4, "norm": {"kind": "rms"}, "pairs": {"query_key": "shrunk"}},
      "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}}}], "final_norm": {"kind": "rms"}})");
  const std::string prefix = "blocks.0.attention.";
  const at::Tensor pivots = pair.ta.at(prefix + "key.pivot"), rest = pair.ta.at(prefix + "key.weight");
  at::Tensor key = at::zeros({12, 12}, at::kDouble);
  for (int64_t row = 0; row < 12; ++row) {
    int64_t next = 0;
    for (int64_t column = 0; column < 12; ++column) {
      const at::Tensor is_pivot = pivots[row / 4] == column;
      key[row][column] =
          is_pivot.any().item<bool>() ? is_pivot[row % 4].to(at::kDouble) : rest[row / 4][row % 4][next++];
    }
  }
  pair.b.blocks[0].attention.value = FromKey{};
  pair.tb.erase(prefix + "value.weight");
  pair.tb[prefix + "value_from_key.weight"] =
      at::linalg_solve(key, pair.ta.at(prefix + "value.weight"), /*left=*/false);
  check_form(pair, /*narrow=*/false);
}
