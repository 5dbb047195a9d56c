// A turned stream against Θ from Gram and Schmidt, written out, and everything that a rotation cannot pass.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8;
const std::string bare_norm = R"({"kind": "rms", "gain": false})";

Architecture turning(const std::string& model = "{}", const std::string& attention = "{}",
                     const std::string& mlp = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2,
      "attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms", "gain": false},
                    "bias": {"query": true, "output": true}},
      "mlp": {"width": 11, "activation": "silu", "gated": true, "norm": {"kind": "rms", "gain": false},
              "bias": {"up": true, "down": true}}})");
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  block["mlp"].merge_patch(nlohmann::json::parse(mlp));
  nlohmann::json text = {{"width", d},
                         {"vocab", 19},
                         {"context", 12},
                         {"embedding", {{"position", "learned"}}},
                         {"final_norm", {{"kind", "rms"}, {"gain", false}}}};
  text["blocks"] = nlohmann::json::array({block});
  text.merge_patch(nlohmann::json::parse(model));
  return architecture_from_json(text, "test");
}

PassStep turned(const Model& model, const std::string& matrix = "first") {
  return run_passes(model, {call_of(find_pass("rotate_residual"), {{"triangular", matrix}})}).steps.at(0);
}

Model drawn_model(const Architecture& a) {
  return {a, as_weights(generic_tensors(a))};
}

// The rows of a matrix one after another, each less what the ones before have of it: Θ's columns, for as many as d.
at::Tensor gram_schmidt(const at::Tensor& rows) {
  std::vector<at::Tensor> basis;
  for (int64_t i = 0; i < d; ++i) {
    at::Tensor left = rows[i].clone();
    for (int round = 0; round < 2; ++round) {  // twice is enough
      for (const at::Tensor& axis : basis) {
        left = left - at::dot(left, axis) * axis;
      }
    }
    basis.push_back(left / left.norm());
  }
  return at::stack(basis, 1);
}

bool is_lower(const at::Tensor& matrix) {
  return at::equal(matrix, at::tril(matrix)) && (matrix.diagonal() > 0).all().item<bool>();
}

}  // namespace

TEST_CASE("rotate_residual: writers times Θ, readers times Θ', and the chosen one triangular") {
  const Architecture a = turning();
  const Tensors old = generic_tensors(a);
  const PassStep step = turned({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  CHECK(step.saved_parameters == 0);
  CHECK(step.proposal.after.architecture == a);
  const at::Tensor theta = gram_schmidt(old.at("blocks.0.attention.query.weight"));
  for (const auto& [name, weight] : step.proposal.after.weights) {
    const at::Tensor before = old.at(name), now = weight.load();
    const bool reads = name.ends_with("query.weight") || name.ends_with("key.weight") ||
                       name.ends_with("value.weight") || name.ends_with("up.weight") || name.ends_with("gate.weight") ||
                       name == "head.weight";
    const bool writes = name.ends_with("attention.output.weight") || name.ends_with("down.weight");
    const bool row = name.starts_with("embed.") || name.ends_with("output.bias") || name.ends_with("down.bias");
    const at::Tensor expected = reads || row ? at::matmul(before, theta)
                                : writes     ? at::matmul(theta.t(), before)
                                             : before;
    CHECK_MESSAGE(at::allclose(now, expected, 1e-12, 1e-13), name);
    CHECK_MESSAGE((reads || writes || row || at::equal(now, before)), name);
  }
  CHECK(is_lower(step.proposal.after.weights.at("blocks.0.attention.query.weight").load()));
  CHECK(difference(drawn_model(a), step.proposal.after) < 1e-13);
  CHECK(step.proposal.notes.at(0).starts_with("blocks.0.attention.query is triangular: 28 of its numbers are zero"));
}

TEST_CASE("rotate_residual: any matrix of the stream, also one that writes it, a table, or few rows") {
  const Architecture a = turning("{}", R"({"kv_heads": 1})");
  const Model before = drawn_model(a);
  for (const std::string name : {"blocks.1.attention.key", "blocks.1.attention.output", "blocks.0.mlp.up",
                                 "blocks.1.mlp.down.weight", "head", "embed.token", "embed.position"}) {
    INFO(name);
    const PassStep step = turned(before, name);
    REQUIRE(step.proposal.applies);
    CHECK(difference(before, step.proposal.after) < 1e-13);
    const std::string weight = name.ends_with(".weight") ? name : name + ".weight";
    const at::Tensor now = step.proposal.after.weights.at(weight).load();
    const bool writer = weight.ends_with("output.weight") || weight.ends_with("down.weight");
    CHECK(is_lower(writer ? now.t() : now));
    const int64_t zeros = (now == 0).sum().item<int64_t>();
    CHECK(zeros == (name == "blocks.1.attention.key" ? 7 + 6 + 5 + 4 : d * (d - 1) / 2));
    CHECK(step.proposal.notes.at(0).find(fmt::format(": {} of its", zeros)) != std::string::npos);
  }
}

TEST_CASE("rotate_residual: the same function wherever it applies") {
  const std::string post = R"({"norm": {"place": "post"}})";
  for (const Architecture& a : {
           turning(R"({"head": {"tied": true}})"),
           turning(R"({"layers": [1, 0, 0, 1]})"),
           turning(R"({"embedding": {"scale": 3.0, "types": 2}})"),
           turning(R"({"embedding": {"norm": {"kind": "rms", "gain": false}}})"),
           turning(R"({"final_norm": {"bias": true}})", R"({"norm": {"bias": true}})"),
           turning("{}", post, post),
           turning("{}", R"({"output_norm": {"kind": "rms", "gain": false}})"),
           turning("{}", R"({"gate": "position"})"),
           turning("{}", R"({"scores": "collapsed", "values": "collapsed", "bias": {"query": true}})"),
           turning(R"({"embedding": {"factor": 5}})"),
           turning(R"({"first_layer": "table", "embedding": {"position": "none"}})"),
           turning(R"({"task": "classifier", "head": {"classes": 3, "transform": {"activation": "tanh"}}})",
                   R"({"mask": "full"})"),
           turning(R"({"final_norm": null})", R"({"norm": null})", R"({"norm": null})"),
       }) {
    INFO(architecture_to_json(a).dump());
    const Model before = drawn_model(a);
    const PassStep step = turned(before);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == 0);
    CHECK(difference(before, step.proposal.after) < 1e-12);
    CHECK_FALSE(at::allclose(step.proposal.after.weights.at("blocks.1.mlp.up.weight").load(),
                             before.weights.at("blocks.1.mlp.up.weight").load()));
  }
}

TEST_CASE("rotate_residual: a tied head takes a uniform gain before it, and no other") {
  const Architecture a = turning(R"({"head": {"tied": true}, "final_norm": {"kind": "rms", "gain": true}})");
  Tensors tensors = generic_tensors(a);
  CHECK(has_reason(turned({a, as_weights(tensors)}), "norm: it is not uniform"));
  tensors["norm.weight"].fill_(0.6);
  const Model before{a, as_weights(tensors)};
  const PassStep step = turned(before);
  REQUIRE(step.proposal.applies);
  CHECK(difference(before, step.proposal.after) < 1e-13);
  CHECK(step.proposal.after.weights.size() == tensors.size());
}

TEST_CASE("rotate_residual: after center_layer_norm a LayerNorm model turns") {
  const std::string layer = R"({"norm": {"kind": "layer"}})";
  const Architecture a = turning(R"({"final_norm": {"kind": "layer"}})", layer, layer);
  const Model before = drawn_model(a);
  CHECK(has_reason(turned(before), "blocks.0.attention.norm: it is a LayerNorm"));
  const Pipeline both = run_passes(before, parse_passes("center_layer_norm,rotate_residual"));
  CHECK(both.steps.at(1).proposal.applies);
  CHECK(is_lower(both.after.weights.at("blocks.0.attention.query.weight").load()));
  CHECK(difference(before, both.after) < 1e-13);
}

TEST_CASE("rotate_residual: computed positions become a table") {
  const Architecture a = turning(R"({"embedding": {"position": "sinusoidal"}})");
  const PassStep step = turned(drawn_model(a));
  REQUIRE(step.proposal.applies);
  CHECK(step.saved_parameters == -12 * d);
  CHECK(difference(drawn_model(a), step.proposal.after) < 1e-13);
  CHECK(step.proposal.notes.at(1) == "computed positions have to be stored: 96 parameters more");
}

TEST_CASE("rotate_residual: everything that a rotation cannot pass") {
  struct Case {
    Architecture architecture;
    std::string reason;
  };
  for (const Case& c : std::vector<Case>{
           {turning("{}", R"({"norm": {"gain": true}})"), "blocks.1.attention.norm: it has a gain"},
           {turning(R"({"final_norm": {"gain": true}})"), "norm: it has a gain"},
           {turning("{}", "{}", R"({"norm": {"kind": "dyt"}})"), "blocks.0.mlp.norm: it is a DyT"},
           {turning("{}", R"({"query": "identity"})"),
            "blocks.0.attention.query: blocks.0.attention.query has no matrix"},
           {turning("{}", R"({"pairs": {"value_output": "shrunk"}})"),
            "blocks.0.attention.value: blocks.0.attention.value is stored without its identity block"},
           {turning(R"({"task": "encoder"})", R"({"mask": "full"})"), "head: it is the model's answer (hidden)"},
       }) {
    INFO(c.reason);
    const PassStep step = turned(drawn_model(c.architecture), "blocks.0.mlp.up");
    CHECK_FALSE(step.proposal.applies);
    CHECK(step.proposal.after.architecture == c.architecture);
    CHECK_MESSAGE(has_reason(step, c.reason), reasons_of(step).at(0));
  }
  const Model plain = drawn_model(turning());
  CHECK(
      has_reason(turned(plain, "blocks.0.attention.query.bias"), "blocks.0.attention.query.bias: it is not a matrix"));
  CHECK(has_reason(turned(plain, "blocks.0.attention.qeury"),
                   "blocks.0.attention.qeury: the model stores none of this name; did you mean "
                   "blocks.0.attention.query?"));
  CHECK_THROWS_WITH(parse_passes("rotate_residual{triangular=}"),
                    "rotate_residual{triangular=}: expected one of first|MATRIX");
}

TEST_CASE("rotate_residual: a gain that was turned past anyway would show") {
  const Architecture a = turning(), gained = turning(R"({"final_norm": {"kind": "rms", "gain": true}})");
  const Tensors tensors = generic_tensors(gained);
  Weights without = as_weights(tensors);
  without.erase("norm.weight");
  Model anyway{gained, turned({a, without}).proposal.after.weights};
  anyway.weights["norm.weight"] = as_weights(tensors).at("norm.weight");
  CHECK(difference({gained, as_weights(tensors)}, anyway) > 1e-2);
}

}  // namespace pare::test
