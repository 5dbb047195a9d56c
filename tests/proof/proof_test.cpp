// The prover against plain algebra: bases, gauges and folds written out here, and everything that is none of them.

#include "pare/search/prove.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "tests/model/architectures.h"
#include "tests/proof/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

// z_B = Θ z_A for the whole stream: writers Θ W, readers W Θ⁻¹.
void change_basis(Pair& pair, const at::Tensor& theta) {
  const at::Tensor back = at::linalg_inv(theta);
  for (auto& [name, tensor] : pair.tb) {
    const auto ends = [&name = name](const char* text) { return name.ends_with(text); };
    if (name.starts_with("embed.")) {
      tensor = at::matmul(tensor, theta.t());
    } else if (ends("output.weight") || ends("down.weight") || ends("output.bias") || ends("down.bias")) {
      tensor = at::matmul(theta, tensor);
    } else if (ends(".weight")) {
      tensor = at::matmul(tensor, back);
    }
  }
}

// q_B = D⁻¹ q_A, k_B = Dᵀ k_A, v_B = E⁻¹ v_A, W_O,B = W_O,A E, for one key/value head and the queries of its group.
void change_gauge(Pair& pair, const std::string& prefix, const Attention& t, int64_t group, const at::Tensor& d,
                  const at::Tensor& e) {
  const int64_t k = t.head_width, share = t.heads / t.kv_heads;
  const auto rows = [&](const std::string& name, int64_t head, const at::Tensor& matrix) {
    if (const auto found = pair.tb.find(prefix + name); found != pair.tb.end()) {
      at::Tensor slice = found->second.narrow(0, head * k, k);
      slice.copy_(at::matmul(matrix, slice.clone()));
    }
  };
  for (auto& [name, tensor] : pair.tb) {
    tensor = tensor.clone();
  }
  for (const char* kind : {".weight", ".bias"}) {
    for (int64_t h = group * share; h < (group + 1) * share; ++h) {
      rows(std::string("query") + kind, h, at::linalg_inv(d));
    }
    rows(std::string("key") + kind, group, d.t());
    rows(std::string("value") + kind, group, at::linalg_inv(e));
  }
  for (int64_t h = group * share; h < (group + 1) * share; ++h) {
    at::Tensor columns = pair.tb.at(prefix + "output.weight").narrow(1, h * k, k);
    columns.copy_(at::matmul(columns.clone(), e));
  }
}

}  // namespace

TEST_CASE("a model is identical to itself, whatever its name, and every form of it is compared") {
  for (const auto& [what, json] : every_architecture()) {
    CAPTURE(what);
    Pair pair = pair_of(json);
    pair.b.name = "another name";
    const Proof same = proof_of(pair);
    CHECK(same.identical);
    CHECK(same.complete);
    CHECK(same.gaps.empty());
    CHECK(same.moved == 0);
    CHECK(same.condition == 1);
    CHECK(same.relations.size() == pair.ta.size());
    // One element of any tensor moved: by much, and to the next number.
    for (const auto& [name, tensor] : pair.ta) {
      CAPTURE(name);
      if (!tensor.is_floating_point()) {
        continue;
      }
      for (const double factor : {1.01, 1 + 0x1p-52}) {
        Pair moved = pair;
        moved.tb[name] = tensor.clone();
        moved.tb[name].flatten()[tensor.numel() / 2].mul_(factor);
        const bool dropped = name.ends_with("attention.key.bias");  // softmax may ignore it
        const Proof proof = proof_of(moved);
        CHECK_FALSE(proof.identical);
        CHECK_MESSAGE((dropped || !proof.complete), factor);
        CHECK((dropped || proof.unexplained.contains(name)));
      }
    }
  }
}

TEST_CASE("the same numbers in a wider type are the same, rounded ones are a rounding away") {
  Pair pair = pair_of(rich_architecture());
  pair.ta = rounded(pair.ta, at::kBFloat16);
  pair.tb = rounded(pair.ta, at::kFloat);
  const auto weights = [](const Tensors& tensors) { return as_weights(tensors); };
  CHECK(prove({pair.a, weights(pair.ta)}, {pair.b, weights(pair.tb)}, at::kCPU).identical);

  pair.ta = generic_tensors(pair.a);
  pair.tb = rounded(pair.ta, at::kBFloat16);
  const Proof close = prove({pair.a, weights(pair.ta)}, {pair.b, weights(pair.tb)}, at::kCPU);
  CHECK_FALSE(close.identical);
  CHECK_MESSAGE(close.complete, why(close));
  CHECK(close.moved < 0x1p-8);
  CHECK(close.moved > 0x1p-14);
  CHECK(relation(close, "head.weight").residual <= 1.001);
}

TEST_CASE("a gain and a shift folded by hand") {
  Pair pair = pair_of(R"({"width": 12, "vocab": 23, "context": 8, "blocks": [{"attention": {"heads": 3, "head_width": 4,
      "bias": {"query": true, "key": true, "value": true, "output": true}, "norm": {"kind": "layer", "bias": true, "offset": 1.0}},
      "mlp": {"width": 20, "activation": "silu", "bias": {"up": true}, "norm": {"kind": "rms", "bias": true}}}],
      "head": {"bias": true}, "final_norm": {"kind": "rms"}})");
  const auto fold = [&pair](const std::string& norm, std::initializer_list<std::string> readers, double offset) {
    for (const std::string& reader : readers) {
      const at::Tensor weight = pair.ta.at(reader + ".weight");
      if (pair.ta.contains(norm + ".bias")) {
        pair.tb.at(reader + ".bias") = pair.ta.at(reader + ".bias") + at::mv(weight, pair.ta.at(norm + ".bias"));
      }
      pair.tb.at(reader + ".weight") = weight * (pair.ta.at(norm + ".weight") + offset);
    }
    pair.tb.erase(norm + ".weight");
    pair.tb.erase(norm + ".bias");
  };
  const std::string attention = "blocks.0.attention.";
  fold(attention + "norm", {attention + "query", attention + "key", attention + "value"}, 1);
  fold("blocks.0.mlp.norm", {"blocks.0.mlp.up"}, 0);
  fold("norm", {"head"}, 0);
  Block& block = pair.b.blocks[0];
  for (Norm* norm : {&*block.attention.norm, &*block.mlp->norm, &*pair.b.final_norm}) {
    norm->gain = norm->bias = false;
    norm->offset = 0;
  }
  const Proof folded = proof_of(pair);
  CHECK_MESSAGE(folded.complete, why(folded));
  CHECK(relation(folded, "blocks.0.mlp.up.weight").how == How::gain_folded);
  CHECK(relation(folded, "blocks.0.mlp.up.bias").how == How::shift_folded);
  CHECK(relation(folded, "blocks.0.mlp.norm.weight").residual <= 1);
  SUBCASE("another epsilon is a difference") {
    pair.b.final_norm->epsilon = 1e-6;
    const Proof proof = proof_of(pair);
    CHECK_FALSE(proof.complete);
    CHECK(why(proof).find("epsilon") != std::string::npos);
    CHECK(proof.unexplained.empty());
  }
  SUBCASE("a gain of another norm is none of this one's") {
    pair.tb.at("head.weight") = pair.ta.at("head.weight") * pair.ta.at("blocks.0.mlp.norm.weight");
    CHECK(proof_of(pair).unexplained.contains("head.weight"));
  }
}

TEST_CASE("one basis for a whole stream, in all four types") {
  for (const at::ScalarType dtype : every_type) {
    CAPTURE(std::string(at::toString(dtype)));
    Pair pair = pair_of(one_stream);
    pair.ta = rounded(rounded(pair.ta, dtype), at::kDouble);
    pair.tb = pair.ta;
    change_basis(pair, random_matrix(12, 5));
    const Proof proof = proof_of(pair, dtype);
    CHECK_MESSAGE(proof.complete, why(proof));
    CHECK(proof.condition > 1);
    CHECK(proof.condition < 100);
    CHECK(proof.moved < 100 * unit_roundoff(dtype_of(dtype)));
    CHECK(relation(proof, "head.weight").how == How::basis);
    // What is no basis is not proved: one element, or all of a tensor. Float64 loses more in Θ⁻¹ than by being stored.
    const double little = dtype == at::kDouble ? 1e-11 : 200 * unit_roundoff(dtype_of(dtype));
    for (const auto& [name, tensor] : pair.tb) {
      CAPTURE(name);
      Pair moved = pair;
      const auto largest = tensor.abs().argmax();
      moved.tb[name] = tensor.clone();
      moved.tb[name].flatten()[largest].mul_(1 + little);
      CHECK_FALSE((proof_of(moved, dtype).complete && !name.ends_with("key.bias")));
      if (dtype == at::kDouble) {
        moved.tb[name] = tensor * 1.5;
        CHECK_FALSE((proof_of(moved).complete && !name.ends_with("key.bias")));
      }
    }
  }
}

// Seven tokens and five neurons of twelve dimensions, and heads in gauges of their own: only all of it together tells.
TEST_CASE("a basis that no table and no matrix determines alone") {
  Pair pair = pair_of(R"({"width": 12, "vocab": 7, "context": 9, "blocks": [{"repeat": 2,
      "attention": {"heads": 3, "head_width": 4, "bias": {"query": true, "value": true, "output": true}},
      "mlp": {"width": 5, "activation": "gelu"}}]})");
  change_basis(pair, random_matrix(12, 5));
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t g = 0; g < 3; ++g) {
      change_gauge(pair, fmt::format("blocks.{}.attention.", n), pair.a.blocks[0].attention, g,
                   random_matrix(4, static_cast<uint64_t>(10 * n + g)),
                   random_matrix(4, static_cast<uint64_t>(30 + 10 * n + g)));
    }
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Proof proof = proof_of(pair, dtype);
    CHECK_MESSAGE(proof.complete, why(proof));
  }
  for (const auto& [name, tensor] : pair.tb) {
    CAPTURE(name);
    Pair moved = pair;
    moved.tb[name] = tensor.clone();
    moved.tb[name].flatten()[tensor.abs().argmax().item<int64_t>()].mul_(1 + 1e-8);
    CHECK_FALSE(proof_of(moved).complete);
  }
}

TEST_CASE("a basis where a norm stands is none") {
  Pair pair = pair_of(one_stream);
  for (Architecture* a : {&pair.a, &pair.b}) {
    a->final_norm = Norm{.kind = NormKind::rms, .gain = false};
  }
  change_basis(pair, random_matrix(12, 5));
  CHECK_FALSE(proof_of(pair).complete);
}

TEST_CASE("a gauge for each head: free, grouped, turning, and none under a norm of heads") {
  const std::string before =
      R"({"width": 12, "vocab": 23, "context": 8, "blocks": [{"attention": {"heads": 4, "kv_heads": 2,
      "head_width": 6, "bias": {"query": true, "key": true, "value": true, "output": true}, "norm": {"kind": "rms"})";
  const std::string behind = R"(}, "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}}}]})";
  const std::string attention = "blocks.0.attention.";
  const auto made = [&](const std::string& more, const at::Tensor& d, const at::Tensor& e) {
    Pair pair = pair_of(before + more + behind);
    for (int64_t g = 0; g < 2; ++g) {
      change_gauge(pair, attention, pair.a.blocks[0].attention, g, d * (1.0 + static_cast<double>(g)), e);
    }
    return pair;
  };
  const at::Tensor d = random_matrix(6, 8), e = random_matrix(6, 9), none = at::eye(6, at::kDouble);
  CHECK(proof_of(made("", d, e)).complete);
  CHECK(proof_of(made(R"(, "softcap": 3.0)", d, e)).complete);
  CHECK(proof_of(made(R"(, "gate": "position")", d, e)).complete);
  CHECK_FALSE(proof_of(made(R"(, "rope": {"theta": 100})", d, e)).complete);
  CHECK_FALSE(proof_of(made(R"(, "qk_norm": {"kind": "rms"})", d, e)).complete);
  CHECK(proof_of(made(R"(, "qk_norm": {"kind": "rms"})", none / 1.0, e)).unexplained.size() > 0);  // the second is 2 I

  for (const char* layout : {"half", "interleaved"}) {
    CAPTURE(layout);
    const std::string rope = fmt::format(R"(, "rope": {{"theta": 100, "width": 4, "layout": "{}"}})", layout);
    at::Tensor turning = at::zeros({6, 6}, at::kDouble);
    const bool half = std::string(layout) == "half";
    for (const auto& [x, y, a, b] : {std::tuple(0, half ? 2 : 1, 1.5, 0.7), {half ? 1 : 2, 3, -0.4, 2.0}}) {
      turning[x][x] = turning[y][y] = a;
      turning[x][y] = -b;
      turning[y][x] = b;
    }
    turning.narrow(0, 4, 2).narrow(1, 4, 2).copy_(random_matrix(2, 3));
    const Proof proof = proof_of(made(rope, turning, e));
    CHECK_MESSAGE(proof.complete, why(proof));
    CHECK(relation(proof, attention + "query.weight").how == How::gauge);
    at::Tensor scaled = turning.clone();
    scaled[0].mul_(2);
    CHECK_FALSE(proof_of(made(rope, scaled, e)).complete);
  }
}

TEST_CASE("the scale of the scores goes into the query, unless ALiBi is scaled with them") {
  const auto made = [](const std::string& more) {
    Pair pair =
        pair_of(R"({"width": 12, "vocab": 23, "context": 8, "blocks": [{"attention": {"heads": 3, "head_width": 4,
        "norm": {"kind": "rms"})" +
                more + "}}]}");
    pair.b.blocks[0].attention.scale = 1;
    pair.tb.at("blocks.0.attention.query.weight") = pair.ta.at("blocks.0.attention.query.weight") / 2;
    return pair;
  };
  CHECK(proof_of(made("")).complete);
  CHECK(proof_of(made(R"(, "alibi": {"scaled": false})")).complete);
  CHECK_FALSE(proof_of(made(R"(, "alibi": {"scaled": true})")).complete);
  Pair wrong = made("");
  wrong.b.blocks[0].attention.scale = 1.1;
  CHECK_FALSE(proof_of(wrong).complete);
}

TEST_CASE("settings that no tensor shows are compared, by name") {
  using Change = std::pair<std::string, std::function<void(Architecture&)>>;
  const std::vector<Change> changes = {
      {"blocks[1].attention.rope.theta", [](Architecture& a) { a.blocks[1].attention.rope->theta = 200; }},
      {"blocks[0].attention.rope.layout",
       [](Architecture& a) { a.blocks[0].attention.rope->layout = RopeLayout::interleaved; }},
      {"blocks[0].attention.window", [](Architecture& a) { a.blocks[0].attention.window = 5; }},
      {"blocks[0].attention.softcap", [](Architecture& a) { a.blocks[0].attention.softcap = 30; }},
      {"blocks[0].attention.mask", [](Architecture& a) { a.blocks[0].attention.mask = Mask::full; }},
      {"blocks[0].attention.skip", [](Architecture& a) { a.blocks[0].attention.skip = false; }},
      {"blocks[1].mlp.activation",
       [](Architecture& a) { std::get<DenseMlp>(a.blocks[1].mlp->kind).activation = Activation::relu; }},
      {"norm.epsilon", [](Architecture& a) { a.final_norm->epsilon = 1e-3; }},
      {"head.softcap", [](Architecture& a) { a.head.softcap = 30; }},
      {"embedding.scale", [](Architecture& a) { a.embedding.scale = 2; }},
      {"context", [](Architecture& a) { a.context = 4; }},
      {"layers",
       [](Architecture& a) {
         a.layers = {0, 1, 1};
       }},
      {"embedding.position", [](Architecture& a) { a.embedding.position = Position::sinusoidal; }},
  };
  for (const auto& [name, change] : changes) {
    CAPTURE(name);
    Pair pair = pair_of(rich_architecture());
    change(pair.b);
    const Proof proof = proof_of(pair);
    CHECK_FALSE(proof.identical);
    CHECK_FALSE(proof.complete);
    CHECK_MESSAGE(why(proof).find(name) != std::string::npos, why(proof));
  }
  SUBCASE("but a candidate may take more than the reference") {
    Pair pair = pair_of(rich_architecture());
    pair.b.context = 64;
    const Proof proof = proof_of(pair);
    CHECK(proof.complete);
    CHECK_FALSE(proof.identical);
  }
}

TEST_CASE("rows of tables that break the map are named, in the same basis and in another") {
  for (const bool in_another : {false, true}) {
    CAPTURE(in_another);
    Pair whole =
        pair_of(R"({"width": 12, "vocab": 5000, "context": 64, "embedding": {"position": "learned", "types": 3},
        "blocks": [{"attention": {"heads": 3, "head_width": 4}, "mlp": {"width": 20, "activation": "gelu"}}]})");
    if (in_another) {
      change_basis(whole, random_matrix(12, 5));
    }
    REQUIRE(proof_of(whole).complete);
    at::manual_seed(3);
    const auto disturb = [](Pair& pair, const std::string& table, const at::Tensor& rows) {
      pair.tb[table] = pair.tb.at(table).clone();
      pair.tb[table].index_put_({rows}, at::randn({rows.numel(), 12}, at::kDouble));
    };

    Pair one = whole;
    disturb(one, "embed.token.weight", at::tensor({int64_t{4711}}));
    const Proof of_one = proof_of(one);
    CHECK_FALSE(of_one.complete);
    CHECK(of_one.strange_tokens == std::vector<int64_t>{4711});
    CHECK(of_one.unexplained == std::set<std::string>{"embed.token.weight"});

    Pair many = whole;
    const at::Tensor rows = std::get<0>(at::sort(at::randperm(5000, at::kLong).narrow(0, 0, 2000)));
    disturb(many, "embed.token.weight", rows);
    disturb(many, "embed.position.weight", at::tensor({int64_t{0}, int64_t{63}}));
    disturb(many, "embed.type.weight", at::tensor({int64_t{1}}));
    const Proof of_many = proof_of(many);
    CHECK(of_many.strange_tokens == std::vector<int64_t>(rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + 2000));
    CHECK(of_many.strange_positions == std::vector<int64_t>{0, 63});
    CHECK(of_many.strange_types == std::vector<int64_t>{1});
    CHECK(of_many.unexplained.size() == 3);

    Pair most = whole;
    disturb(most, "embed.token.weight", at::arange(700, 5000, at::kLong));
    const Proof of_most = proof_of(most);
    CHECK_FALSE(of_most.complete);
    CHECK(of_most.strange_tokens.empty());
    CHECK(of_most.unexplained.contains("embed.token.weight"));
  }
}

TEST_CASE("other forms of the same function") {
  SUBCASE("a tied head, and the same table twice") {
    Pair pair = pair_of(
        R"({"width": 12, "vocab": 23, "context": 8, "head": {"tied": true}, "final_norm": {"kind": "layer", "bias": true},
        "blocks": [{"attention": {"heads": 3, "head_width": 4, "norm": {"kind": "rms"}}}]})");
    pair.b.head.tied = false;
    pair.tb["head.weight"] = pair.ta.at("embed.token.weight");
    const Proof proof = proof_of(pair);
    CHECK_MESSAGE(proof.complete, why(proof));
    pair.tb["head.weight"] = pair.tb["head.weight"].clone();
    pair.tb["head.weight"][5][5] += 1e-9;
    CHECK_FALSE(proof_of(pair).complete);
  }
  SUBCASE("an identity that is stored, a bias of zeros, a gain of ones") {
    Pair pair = pair_of(R"({"width": 12, "vocab": 23, "context": 8, "final_norm": {"kind": "rms", "gain": false},
        "blocks": [{"attention": {"heads": 3, "head_width": 4, "query": "identity"}}]})");
    pair.b.blocks[0].attention.query = Dense{};
    pair.b.blocks[0].attention.bias.query = true;
    pair.b.final_norm->gain = true;
    pair.tb["blocks.0.attention.query.weight"] = at::eye(12, at::kDouble);
    pair.tb["blocks.0.attention.query.bias"] = at::zeros({12}, at::kDouble);
    pair.tb["norm.weight"] = at::ones({12}, at::kDouble);
    const Proof proof = proof_of(pair);
    CHECK_MESSAGE(proof.complete, why(proof));
    pair.tb["blocks.0.attention.query.bias"][3] = 1e-3;
    CHECK_FALSE(proof_of(pair).complete);
  }
  SUBCASE("computed positions, and a table of them") {
    Pair pair = pair_of(R"({"width": 12, "vocab": 23, "context": 8, "embedding": {"position": "sinusoidal"},
        "blocks": [{"attention": {"heads": 3, "head_width": 4, "norm": {"kind": "rms"}}}]})");
    pair.b.embedding.position = Position::learned;
    at::Tensor table = at::empty({8, 12}, at::kDouble);
    for (int64_t p = 0; p < 8; ++p) {
      for (int64_t i = 0; i < 6; ++i) {
        const double angle = static_cast<double>(p) / std::pow(10000.0, static_cast<double>(2 * i) / 12);
        table[p][2 * i] = std::sin(angle);
        table[p][2 * i + 1] = std::cos(angle);
      }
    }
    pair.tb["embed.position.weight"] = table;
    const Proof proof = proof_of(pair);
    CHECK_MESSAGE(proof.complete, why(proof));
    pair.tb["embed.position.weight"][7][3] += 1e-9;
    CHECK(proof_of(pair).strange_positions == std::vector<int64_t>{7});
  }
}

TEST_CASE("what is not a number proves nothing") {
  Pair pair = pair_of(one_stream);
  pair.tb["blocks.0.mlp.up.weight"] = pair.ta.at("blocks.0.mlp.up.weight").clone();
  pair.tb["blocks.0.mlp.up.weight"][3][3] = std::nan("");
  CHECK_FALSE(proof_of(pair).complete);
  pair.ta["blocks.0.mlp.up.weight"] = pair.tb.at("blocks.0.mlp.up.weight");
  CHECK_FALSE(proof_of(pair).identical);
  CHECK_FALSE(proof_of(pair).complete);
}

// Bases so near to singular that a rounding in them is another function.
TEST_CASE("a basis that loses everything in its type proves nothing") {
  Pair pair = pair_of(one_stream);
  pair.ta = rounded(rounded(pair.ta, at::kBFloat16), at::kDouble);
  pair.tb = pair.ta;
  at::Tensor theta = random_matrix(12, 5);
  theta[0] = theta[1] + 1e-4 * theta[0];
  change_basis(pair, theta);
  CHECK(proof_of(pair).complete);
  const Proof proof = proof_of(pair, at::kBFloat16);
  CHECK_FALSE(proof.complete);
}

TEST_CASE("dead directions and empty matrices hide nothing") {
  Pair pair = pair_of(one_stream);
  for (const char* name :
       {"blocks.0.mlp.up.weight", "blocks.1.attention.value.weight", "blocks.1.attention.query.weight"}) {
    pair.ta[name] = at::zeros_like(pair.ta.at(name));
  }
  pair.ta["embed.token.weight"] = pair.ta.at("embed.token.weight").clone();
  pair.ta["embed.token.weight"][3].zero_();  // a row of padding
  pair.ta["embed.token.weight"][4].mul_(1e13);
  pair.tb = pair.ta;
  change_basis(pair, random_matrix(12, 5));
  const Proof proof = proof_of(pair);
  CHECK_MESSAGE(proof.complete, why(proof));
  for (const auto& [name, tensor] : pair.tb) {
    CAPTURE(name);
    Pair moved = pair;
    moved.tb[name] = tensor.clone();
    moved.tb[name].flatten()[tensor.numel() / 2].add_(1e-3);
    CHECK_FALSE((proof_of(moved).complete && !name.ends_with("key.bias")));
  }
}
