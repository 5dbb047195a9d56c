// LayerNorms against RMSNorms of centred writers, written out, and every stream that has to keep its mean.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8;
const std::string all_biases = R"("bias": {"query": true, "key": true, "value": true, "output": true})";

Architecture layered(const std::string& model = "{}", const std::string& attention = "{}",
                     const std::string& mlp = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2,
      "attention": {"heads": 2, "head_width": 4, "norm": {"kind": "layer", "bias": true, "epsilon": 0.02}},
      "mlp": {"width": 11, "activation": "gelu", "norm": {"kind": "layer", "bias": true, "offset": 1},
              "bias": {"up": true, "down": true}}})");
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  block["mlp"].merge_patch(nlohmann::json::parse(mlp));
  nlohmann::json text = {{"width", d},
                         {"vocab", 19},
                         {"context", 12},
                         {"embedding", {{"position", "learned"}}},
                         {"final_norm", {{"kind", "layer"}, {"bias", true}}}};
  text["blocks"] = nlohmann::json::array({block});
  text.merge_patch(nlohmann::json::parse(model));
  return architecture_from_json(text, "test");
}

PassStep centred(const Model& model) {
  return run_passes(model, {call_of(find_pass("center_layer_norm"))}).steps.at(0);
}

Model generic(const Architecture& a) {
  return {a, as_weights(generic_tensors(a))};
}

// Each row less its mean, number by number; what stands in the columns of a matrix [out, in] is a row for each of them.
at::Tensor less_mean(const at::Tensor& stored, bool columns) {
  at::Tensor result = columns ? stored.t().clone() : stored.clone();
  for (int64_t i = 0; i < (result.dim() == 1 ? 1 : result.size(0)); ++i) {
    at::Tensor row = result.dim() == 1 ? result : result[i];
    double sum = 0;
    for (int64_t j = 0; j < d; ++j) {
      sum += row[j].item<double>();
    }
    row.sub_(sum / static_cast<double>(d));
  }
  return columns ? result.t() : result;
}

}  // namespace

TEST_CASE("center_layer_norm: writers lose their means, norms keep all but their kind") {
  const Architecture a = layered("{}", "{" + all_biases + "}");
  const Tensors old = generic_tensors(a);
  const PassStep step = centred({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  CHECK(step.saved_parameters == 0);
  const Model& after = step.proposal.after;
  CHECK(after.weights.size() == old.size());
  int64_t changed = 0;
  for (const auto& [name, weight] : after.weights) {
    const bool table = name == "embed.token.weight" || name == "embed.position.weight";
    const bool matrix = name.ends_with("output.weight") || name.ends_with("down.weight");
    const bool bias = name.ends_with("output.bias") || name.ends_with("down.bias");
    if (table || matrix || bias) {
      CHECK_MESSAGE(at::allclose(weight.load(), less_mean(old.at(name), matrix), 1e-13, 1e-15), name);
      CHECK_FALSE(at::allclose(weight.load(), old.at(name)));
      ++changed;
    } else {
      CHECK_MESSAGE(at::equal(weight.load(), old.at(name)), name);
    }
  }
  CHECK(changed == 2 + 2 * 4);
  Architecture expected = a;
  for (Block& block : expected.blocks) {
    block.attention.norm->kind = block.mlp->norm->kind = NormKind::rms;
  }
  expected.final_norm->kind = NormKind::rms;
  CHECK(after.architecture == expected);
  CHECK(difference(generic(a), after) < 1e-13);
  CHECK(step.proposal.notes.at(0).starts_with("5 LayerNorms became RMSNorms"));
}

TEST_CASE("center_layer_norm: the same function wherever it applies") {
  const std::string tied = R"({"head": {"tied": true}, "final_norm": {"kind": "layer", "gain": false, "bias": false}})";
  for (const Architecture& a : {
           layered(),
           layered(R"({"embedding": {"scale": 3.0, "types": 2}})"),
           layered(R"({"layers": [1, 0, 0, 1]})"),
           layered(tied),
           layered(R"({"embedding": {"factor": 5}})"),
           layered(R"({"embedding": {"factor": 5, "factor_scope": "sum", "factor_bias": true}})"),
           layered(R"({"task": "encoder"})", R"({"mask": "full"})"),
           layered(R"({"task": "encoder", "vocab": 0, "context": 5, "embedding": {"class_token": true,
                       "patch": {"size": 2, "channels": 2, "image": 4, "bias": true}}})",
                   R"({"mask": "full"})"),
           layered("{}", R"({"output_norm": {"kind": "layer"}, "skip": false})", R"({"skip": false})"),
           layered("{}", R"({"values": "collapsed", "scores": "collapsed"})"),
       }) {
    INFO(architecture_to_json(a).dump());
    const Model before = generic(a);
    const PassStep step = centred(before);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == 0);
    CHECK(difference(before, step.proposal.after) < 1e-13);
  }
}

TEST_CASE("center_layer_norm: computed positions have means, and become a table") {
  const Architecture a = layered(R"({"embedding": {"position": "sinusoidal"}})");
  const PassStep step = centred(generic(a));
  REQUIRE(step.proposal.applies);
  CHECK(step.saved_parameters == -12 * d);
  CHECK(difference(generic(a), step.proposal.after) < 1e-13);
  CHECK(step.proposal.notes.at(1) == "computed positions have to be stored: 96 parameters more");
}

TEST_CASE("center_layer_norm: a table in place of the first layer is centred where the stream begins, not beyond") {
  const Architecture a = layered(R"({"first_layer": "table", "embedding": {"position": "none"}})");
  const Model before = generic(a);
  const PassStep step = centred(before);
  REQUIRE(step.proposal.applies);
  const at::Tensor old = before.weights.at("embed.table.weight").load();
  const at::Tensor now = step.proposal.after.weights.at("embed.table.weight").load();
  CHECK(at::allclose(now.narrow(1, 0, d), less_mean(old.narrow(1, 0, d), false), 1e-13, 1e-15));
  CHECK(at::equal(now.narrow(1, d, 3 * d), old.narrow(1, d, 3 * d)));
  CHECK(difference(before, step.proposal.after) < 1e-13);
  CHECK(step.proposal.after.architecture.blocks[0].attention.norm->kind == NormKind::layer);  // it runs nowhere
}

TEST_CASE("center_layer_norm: whoever sees the mean keeps it, and says so") {
  const std::string rms = R"({"norm": {"kind": "rms", "bias": false}})";
  struct Case {
    Architecture architecture;
    std::string reason;
  };
  for (const Case& c : std::vector<Case>{
           {layered(R"({"final_norm": {"kind": "rms"}})"), "norm: an RMSNorm reads it"},
           {layered(R"({"final_norm": {"kind": "dyt"}})"), "norm: a DyT reads it"},
           {layered(R"({"final_norm": null})"), "head: a matrix reads it without a norm"},
           {layered("{}", R"({"norm": null})"), "blocks.1.attention.query: a matrix reads it without a norm"},
           {layered("{}", R"({"norm": null, "query": "identity"})"),
            "blocks.0.attention.query: blocks.0.attention.query has no matrix"},
           {layered("{}", "{}", rms), "blocks.0.mlp.norm: an RMSNorm reads it"},
           {layered("{}", R"({"norm": {"place": "post"}})"), "blocks.0.attention.norm: a norm writes it"},
           {layered("{}", "{}", R"({"output_norm": {"kind": "rms"}})"), "blocks.0.mlp.output_norm: a norm writes it"},
           {layered(R"({"task": "encoder", "final_norm": null})", R"({"mask": "full"})"),
            "head: it is the model's answer (hidden)"},
           {layered(R"({"head": {"tied": true}})"), "head: the head is tied, and norm has a bias"},
           {layered(R"({"head": {"tied": true}, "final_norm": {"kind": "layer", "bias": false}})"),
            "head: the head is tied, and the gain of norm is not uniform"},
           {layered(R"({"task": "masked_lm", "head": {"tied": true, "transform": {"activation": "gelu"}}})"),
            "head: the head is tied, and head.transform writes what it reads"},
           // Behind one block that runs twice the head reads what the embedding's norm wrote, and what the block did.
           {layered(R"({"layers": [0, 1, 0, 1], "final_norm": null, "head": {"tied": true},
                        "embedding": {"norm": {"kind": "layer", "gain": false}}})",
                    R"({"norm": null, "skip": false})", R"({"norm": null, "skip": false})"),
            "head: the head is tied, and blocks.1.mlp.down writes what it reads"},
       }) {
    INFO(c.reason);
    const Model before = generic(c.architecture);
    const PassStep step = centred(before);
    CHECK_FALSE(step.proposal.applies);
    CHECK(step.proposal.after.architecture == c.architecture);
    CHECK_MESSAGE(has_reason(step, c.reason), reasons_of(step).at(0));
  }
  const PassStep none = centred(generic(layered(R"({"final_norm": {"kind": "rms"}})", rms, rms)));
  CHECK(has_reason(none, "blocks.0.attention.norm: it is an RMSNorm"));
  CHECK(none.proposal.preconditions.at(0).remedy.empty());
}

TEST_CASE("center_layer_norm: a tied head that has no mean to lose keeps its table, with a uniform gain too") {
  const Architecture a = layered(R"({"head": {"tied": true}, "final_norm": {"kind": "layer", "bias": false}})");
  Tensors tensors = generic_tensors(a);
  tensors["norm.weight"].fill_(1.7);
  const Model before{a, as_weights(tensors)};
  const PassStep step = centred(before);
  REQUIRE(step.proposal.applies);
  CHECK(step.proposal.after.architecture.head.tied);
  CHECK(difference(before, step.proposal.after) < 1e-13);
  tensors["norm.weight"][3] = 1.8;
  CHECK_FALSE(centred({a, as_weights(tensors)}).proposal.applies);
}

TEST_CASE("center_layer_norm: an embedding's own norm is centred by itself, where what it writes cannot be") {
  const Architecture a = layered(R"({"embedding": {"norm": {"kind": "layer", "bias": true}}})");
  const Model before = generic(a);
  const PassStep step = centred(before);
  REQUIRE(step.proposal.applies);
  CHECK(step.proposal.after.architecture.embedding.norm->kind == NormKind::rms);
  CHECK(step.proposal.after.architecture.final_norm->kind == NormKind::layer);
  CHECK(has_reason(step, "embed.norm: a norm writes it"));
  CHECK(difference(before, step.proposal.after) < 1e-13);
}

TEST_CASE("center_layer_norm: an RMSNorm that was centred anyway would be another function") {
  const Architecture a =
      layered(R"({"final_norm": {"kind": "rms"}})", R"({"norm": {"kind": "rms"}})", R"({"norm": {"kind": "rms"}})");
  Tensors tensors = generic_tensors(a);
  const Model before{a, as_weights(tensors)};
  for (auto& [name, tensor] : tensors) {
    const bool matrix = name.ends_with("output.weight") || name.ends_with("down.weight");
    if (matrix || name.starts_with("embed.") || name.ends_with("down.bias")) {
      tensor = less_mean(tensor, matrix).contiguous();
    }
  }
  CHECK(difference(before, {a, as_weights(tensors)}) > 1e-2);
}

}  // namespace pare::test
