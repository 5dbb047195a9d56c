// What folds where no bias is there to take it: a norm's bias in units of its gain, and in collapsed heads.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/proof/forms.h"

using namespace pare;
using namespace pare::test;

namespace {

// Readers without biases, so that a norm's bias has to stay where it is.
const char* const without_biases =
    R"({"width": 12, "vocab": 23, "context": 9, "embedding": {"position": "learned"}, "blocks": [{
        "attention": {"heads": 3, "head_width": 4, "norm": {"kind": "layer", "bias": true, "offset": 1.0}},
        "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms", "bias": true}}}],
        "final_norm": {"kind": "layer", "bias": true}})";

// (g ∘ n + c) W = (n + c / g) (diag(g) W)
Pair in_units_of_gains() {
  Pair pair = pair_of(without_biases);
  const auto fold = [&pair](const std::string& norm, double offset, std::initializer_list<std::string> readers) {
    const at::Tensor gain = pair.ta.at(norm + ".weight") + offset;
    for (const std::string& reader : readers) {
      pair.tb.at(reader + ".weight") = pair.ta.at(reader + ".weight") * gain;
    }
    pair.tb.at(norm + ".bias") = pair.ta.at(norm + ".bias") / gain;
    pair.tb.erase(norm + ".weight");
  };
  const std::string attention = "blocks.0.attention.";
  fold(attention + "norm", 1, {attention + "query", attention + "key", attention + "value"});
  fold("blocks.0.mlp.norm", 0, {"blocks.0.mlp.up"});
  fold("norm", 0, {"head"});
  for (Norm* norm : {&*pair.b.blocks[0].attention.norm, &*pair.b.blocks[0].mlp->norm, &*pair.b.final_norm}) {
    norm->gain = false;
    norm->offset = 0;
  }
  return pair;
}

}  // namespace

TEST_CASE("fold: a gain, and a bias that stays in units of it") {
  const Pair pair = in_units_of_gains();
  check_form(pair);
  SUBCASE("biases that stayed as they were are another function") {
    Pair kept = pair;
    for (const char* name : {"blocks.0.attention.norm.bias", "blocks.0.mlp.norm.bias", "norm.bias"}) {
      CAPTURE(name);
      kept.tb[name] = kept.ta.at(name);
      CHECK(distance(kept) > 1e-6);
      const Proof proof = proof_of(kept);
      CHECK_FALSE(proof.complete);
      CHECK(proof.unexplained.contains(name));
    }
  }
  SUBCASE("where a gain is zero, what a reader makes of the bias is not in the product") {
    Pair zero = pair;
    for (const char* name : {"blocks.0.mlp.norm.weight", "blocks.0.mlp.norm.bias", "blocks.0.mlp.up.weight"}) {
      zero.ta[name] = pair.ta.at(name).clone();
    }
    zero.ta["blocks.0.mlp.norm.weight"][5] = 0;
    zero.tb = zero.ta;
    zero.b = zero.a;
    zero.tb["blocks.0.mlp.norm.weight"] = zero.ta.at("blocks.0.mlp.norm.weight") * 2;
    zero.tb["blocks.0.mlp.norm.bias"] = zero.ta.at("blocks.0.mlp.norm.bias") * 2;
    zero.tb["blocks.0.mlp.up.weight"] = zero.ta.at("blocks.0.mlp.up.weight") / 2;
    CHECK(distance(zero) < float64_noise);
    CHECK_FALSE(proof_of(zero).complete);  // the same function, but this relation does not tell
    zero.tb["blocks.0.mlp.up.weight"].select(1, 5).mul_(3);
    CHECK(distance(zero) > 1e-6);
    CHECK_FALSE(proof_of(zero).complete);
  }
}

// Beside a gain that is folded a bias turns with the stream that it is added to.
TEST_CASE("fold: a norm's bias that is turned with its stream") {
  Pair pair = pair_of(R"({"width": 12, "vocab": 40, "context": 9, "blocks": [{
      "attention": {"heads": 3, "head_width": 4, "norm": {"kind": "rms", "bias": true}},
      "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms", "bias": true}}}],
      "final_norm": {"kind": "rms", "bias": true}})");
  const at::Tensor by = std::get<0>(at::linalg_qr(random_matrix(12, 3)));
  const auto ends = [](const std::string& name, const char* text) { return name.ends_with(text); };
  for (auto& [name, tensor] : pair.tb) {
    const std::string norm = name.starts_with("blocks.0.attention") ? "blocks.0.attention.norm"
                             : name.starts_with("blocks.0.mlp")     ? "blocks.0.mlp.norm"
                                                                    : "norm";
    if (ends(name, "output.weight") || ends(name, "down.weight")) {
      tensor = at::matmul(by, tensor);
    } else if (ends(name, "norm.bias")) {
      tensor = at::mv(by, tensor / pair.ta.at(norm + ".weight"));
    } else if (name.starts_with("embed.")) {
      tensor = at::matmul(tensor, by.t());
    } else if (!ends(name, "norm.weight")) {
      tensor = at::matmul(tensor * pair.ta.at(norm + ".weight"), by.t());
    }
  }
  std::erase_if(pair.tb, [&](const auto& entry) { return ends(entry.first, "norm.weight"); });
  for (Norm* norm : {&*pair.b.blocks[0].attention.norm, &*pair.b.blocks[0].mlp->norm, &*pair.b.final_norm}) {
    norm->gain = false;
  }
  check_form(pair);
  pair.tb["norm.bias"] = pair.ta.at("norm.bias") / pair.ta.at("norm.weight");  // nobody turned it
  CHECK(distance(pair) > 1e-6);
  CHECK_FALSE(proof_of(pair).complete);
}

namespace {

const char* const biased_norms =
    R"({"width": 6, "vocab": 23, "context": 9, "embedding": {"position": "learned"}, "blocks": [{"repeat": 2,
        "attention": {"heads": 2, "kv_heads": 1, "head_width": 5, "norm": {"kind": "layer", "bias": true},
                      "bias": {"query": true, "key": true, "value": true, "output": true}},
        "mlp": {"width": 20, "activation": "gelu"}}]})";

// x_q' W_Q' W_K x_k with x = g ∘ n + c: c goes into what x_k is multiplied with, and what is left is the same for every
// key; Σ_h c W_V' W_O' goes into the output's bias.
enum class Reference { factored, collapsed };

Pair collapsed_behind_norms(Reference form) {
  Pair pair = pair_of(biased_norms);
  for (int64_t n = 0; n < 2; ++n) {
    const std::string prefix = fmt::format("blocks.{}.attention.", n);
    const auto of = [&](const char* name) { return pair.ta.at(prefix + name); };
    const at::Tensor gain = of("norm.weight"), constant = of("norm.bias"), key = of("key.weight");
    const at::Tensor scores = at::matmul(of("query.weight").view({2, 5, 6}).transpose(1, 2), key);
    const at::Tensor both = at::matmul(of("value.weight").t(), of("output.weight").t().reshape({2, 5, 6}));
    const at::Tensor asked = at::matmul(of("query.bias").view({2, 5}), key);
    const at::Tensor added = of("output.bias") + at::mv(of("output.weight"), of("value.bias").repeat({2}));
    Tensors plain = {{"qk.weight", scores}, {"qk.bias", asked}, {"vo.weight", both}, {"output.bias", added}};
    Tensors folded = {{"qk.weight", scores * gain * gain.unsqueeze(1)},
                      {"qk.bias", (asked + at::matmul(constant, scores)) * gain},
                      {"vo.weight", both * gain.unsqueeze(1)},
                      {"output.bias", added + at::matmul(constant, both).sum(0)}};
    const auto collapse = [&](Architecture& a, Tensors& tensors, const Tensors& made) {
      Attention& t = a.blocks[n].attention;
      t.scores = t.values = Form::collapsed;
      t.bias.key = t.bias.value = false;
      for (const char* gone :
           {"query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias", "output.weight"}) {
        tensors.erase(prefix + gone);
      }
      for (const auto& [name, tensor] : made) {
        tensors[prefix + name] = tensor;
      }
    };
    collapse(pair.b, pair.tb, folded);
    pair.tb.erase(prefix + "norm.weight");
    pair.tb.erase(prefix + "norm.bias");
    Norm& norm = *pair.b.blocks[n].attention.norm;
    norm.gain = norm.bias = false;
    if (form == Reference::collapsed) {
      collapse(pair.a, pair.ta, plain);
    }
  }
  return pair;
}

}  // namespace

TEST_CASE("fold: a norm's gain and bias into collapsed heads") {
  for (const Reference form : {Reference::factored, Reference::collapsed}) {
    const Pair pair = collapsed_behind_norms(form);
    check_form(pair);
    const std::string prefix = "blocks.1.attention.";
    const at::Tensor rest = pair.ta.at(prefix + "norm.bias") / pair.ta.at(prefix + "norm.weight");
    for (const auto& [name, lost] :
         {std::pair("qk.bias", at::matmul(rest, pair.tb.at(prefix + "qk.weight"))),
          std::pair("output.bias", at::matmul(rest, pair.tb.at(prefix + "vo.weight")).sum(0))}) {
      CAPTURE(name);
      Pair without = pair;
      without.tb[prefix + name] = pair.tb.at(prefix + name) - lost;
      CHECK(distance(without) > 1e-6);
      CHECK_FALSE(proof_of(without).complete);
    }
  }
}

TEST_CASE(
    "fold: what a norm's bias makes the same for every key is seen under a softcap, what it adds through a gate") {
  const Pair pair = collapsed_behind_norms(Reference::collapsed);
  Pair capped = pair;
  Pair gated = pair;
  for (auto set : {&Pair::a, &Pair::b}) {
    (capped.*set).blocks[0].attention.softcap = 2;
    (gated.*set).blocks[0].attention.gate = Gate{};
  }
  CHECK(distance(capped) > 1e-6);
  CHECK_FALSE(proof_of(capped).complete);
  const Tensors generic = generic_tensors(gated.a);
  const std::string gate = "blocks.0.attention.gate.", norm = "blocks.0.attention.norm.";
  for (const char* kind : {"weight", "bias", "position"}) {
    gated.ta[gate + kind] = gated.tb[gate + kind] = generic.at(gate + kind);
  }
  gated.tb[gate + "weight"] = generic.at(gate + "weight") * pair.ta.at(norm + "weight");
  gated.tb[gate + "bias"] = generic.at(gate + "bias") + at::mv(generic.at(gate + "weight"), pair.ta.at(norm + "bias"));
  CHECK(distance(gated) > 1e-6);
  CHECK_FALSE(proof_of(gated).complete);
}
