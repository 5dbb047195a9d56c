// Gains and biases of norms against diag(g) W and b + c W, and every norm that has to keep them.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, L = 2;
const std::string layer_norm = R"({"norm": {"kind": "layer", "bias": true})";
const std::string biases = R"("bias": {"query": true, "key": true, "value": true, "output": true})";

// Pre-norm throughout; patches change parts of it.
Architecture normed(const std::string& model = "{}", const std::string& attention = "{}", const std::string& mlp = "{}",
                    const std::string& wiring = "serial", int64_t blocks = L) {
  nlohmann::json block = nlohmann::json::parse(R"({
      "attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms"}},
      "mlp": {"width": 11, "activation": "gelu", "norm": {"kind": "rms"}}})");
  block["repeat"] = blocks;
  block["wiring"] = wiring;
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  block["mlp"].merge_patch(nlohmann::json::parse(mlp));
  nlohmann::json text = {{"width", d},
                         {"vocab", 19},
                         {"context", 12},
                         {"embedding", {{"position", "learned"}}},
                         {"final_norm", {{"kind", "rms"}}}};
  text["blocks"] = nlohmann::json::array({block});
  text.merge_patch(nlohmann::json::parse(model));
  return architecture_from_json(text, "test");
}

PassStep step_of(const Model& model, const std::string& bias = "fold") {
  return run_passes(model, {call_of(find_pass("fold_norm_gain"), {{"bias", bias}})}).steps.at(0);
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() <= 1e-13 * (1 + b.abs().max().item<double>());
}

const Precondition& about(const PassStep& step, const std::string& where) {
  for (const Precondition& p : step.proposal.preconditions) {
    if (p.where == where) {
      return p;
    }
  }
  FAIL("nothing is said about ", where);
  return step.proposal.preconditions.front();
}

}  // namespace

TEST_CASE("fold_norm_gain: the last norm goes into whatever the model ends in") {
  for (
      const char* end :
      {R"({"task": "classifier", "head": {"classes": 3, "bias": true, "pool": "last"}})",
       R"({"task": "classifier", "head": {"classes": 3, "bias": true, "transform": {"activation": "tanh"}}})",
       R"({"task": "token_classifier", "head": {"classes": 3, "bias": true}})",
       R"({"task": "question_answering", "head": {"classes": 2, "bias": true}})",
       R"({"task": "masked_lm", "head": {"bias": true, "transform": {"activation": "gelu", "norm": {"kind": "layer", "bias": true}},
            "sequence": {"classes": 2, "transform": {"activation": "tanh", "norm": {"kind": "layer", "bias": true}}}}})"}) {
    CAPTURE(end);
    nlohmann::json model = nlohmann::json::parse(end);
    model["final_norm"] = {{"kind", "layer"}, {"bias", true}};
    const Architecture a = normed(model.dump());
    const Model before{a, as_weights(generic_tensors(a))};
    const PassStep step = step_of(before);
    CHECK(about(step, "norm").holds);
    CHECK_FALSE(step.proposal.after.weights.contains("norm.weight"));
    CHECK_FALSE(step.proposal.after.weights.contains("norm.bias"));
    CHECK_FALSE(step.proposal.after.weights.contains("head.sequence.transform.norm.weight"));
    const Inputs inputs = random_inputs(a, 2, 7);
    const auto run_on = [&](const Model& recipe) { return Executor(recipe, at::kDouble).forward(inputs); };
    CHECK(relative_error(run_on(step.proposal.after), run_on(before)) < 1e-13);
  }
  // A head without a bias has nowhere to put the norm's: the gain stays, or is asked to go alone.
  const Architecture a = normed(R"({"task": "classifier", "final_norm": {"kind": "layer", "bias": true},
                                    "head": {"classes": 3, "pool": "last"}})");
  CHECK_FALSE(about(step_of({a, as_weights(generic_tensors(a))}), "norm").holds);
  const PassStep step = step_of({a, as_weights(generic_tensors(a))}, "keep");
  CHECK(step.proposal.after.architecture.final_norm->bias);
  CHECK_FALSE(step.proposal.after.architecture.final_norm->gain);
}

TEST_CASE("fold_norm_gain: a bias that not every reader can take stays, over the gain") {
  // One reader of the parallel block's norm, the MLP, has a bias: it must not take what the others cannot.
  const Architecture a = normed(R"({"final_norm": {"kind": "layer", "bias": true, "offset": 1}})", layer_norm + "}",
                                R"({"norm": null, "bias": {"up": true}})", "parallel");
  Tensors old = generic_tensors(a);
  const Model before{a, as_weights(old)};
  CHECK(about(step_of(before), "norm").remedy == "bias=keep, which leaves it in the norm, divided by the gain");
  const PassStep step = step_of(before, "keep");
  REQUIRE(step.proposal.applies);
  CHECK(step.saved_parameters == (L + 1) * d);
  const auto after = [&](const std::string& name) { return step.proposal.after.weights.at(name).load(); };
  for (const auto& [norm, offset] : {std::pair("blocks.1.attention.norm", 0.0), {"norm", 1.0}}) {
    CHECK_FALSE(step.proposal.after.weights.contains(std::string(norm) + ".weight"));
    const at::Tensor gain = old.at(std::string(norm) + ".weight") + offset, bias = old.at(std::string(norm) + ".bias");
    CHECK(close(after(std::string(norm) + ".bias"), bias / gain));
  }
  const at::Tensor gain = old.at("blocks.1.attention.norm.weight");
  for (const char* reader : {"attention.query", "attention.key", "attention.value", "mlp.up"}) {
    const std::string name = fmt::format("blocks.1.{}.weight", reader);
    CHECK(close(after(name), old.at(name) * gain));
  }
  CHECK(at::equal(after("blocks.1.mlp.up.bias"), old.at("blocks.1.mlp.up.bias")));
  CHECK(difference(before, step.proposal.after) < 1e-13);
  CHECK_FALSE(step_of(step.proposal.after, "keep").proposal.applies);  // and then nothing is left

  // A gain of zero beside a bias cannot be divided by; beside none it need not be.
  const at::Tensor gains = old.at("blocks.0.attention.norm.weight"), shifts = old.at("blocks.0.attention.norm.bias");
  gains[3] = 0;
  const PassStep zero = step_of({a, as_weights(old)}, "keep");
  CHECK(about(zero, "blocks.0.attention.norm").found == "a gain of zero beside a bias");
  CHECK(zero.saved_parameters == L * d);
  CHECK(difference({a, as_weights(old)}, zero.proposal.after) < 1e-13);
  gains[3] = 1e-9;
  CHECK(about(step_of({a, as_weights(old)}, "keep"), "blocks.0.attention.norm").found.starts_with("a quotient of "));
  gains[3] = shifts[3] = 0;
  const PassStep both = step_of({a, as_weights(old)}, "keep");
  CHECK(both.saved_parameters == (L + 1) * d);
  CHECK(difference({a, as_weights(old)}, both.proposal.after) < 1e-13);
}

TEST_CASE("fold_norm_gain: every reader becomes diag(g) W and b + c W") {
  const Architecture a =
      normed(R"({"final_norm": {"kind": "layer", "bias": true, "offset": 1}, "head": {"bias": true}})",
             layer_norm + R"(, "gate": "position", )" + biases + "}",
             R"({"norm": {"kind": "layer", "bias": true, "offset": 1}, "gated": true,
                                    "bias": {"up": true, "gate": true}})");
  const Tensors old = generic_tensors(a);
  const PassStep step = step_of({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  const auto folded = [&](const std::string& norm, double offset, const std::vector<std::string>& readers) {
    CHECK_FALSE(step.proposal.after.weights.contains(norm + ".weight"));
    CHECK_FALSE(step.proposal.after.weights.contains(norm + ".bias"));
    const at::Tensor gain = old.at(norm + ".weight") + offset, shift = old.at(norm + ".bias");
    for (const std::string& reader : readers) {
      INFO(reader);
      const at::Tensor w = old.at(reader + ".weight").t(), b = old.at(reader + ".bias");  // [in, out]
      const at::Tensor weight = step.proposal.after.weights.at(reader + ".weight").load().t();
      const at::Tensor diagonal = at::diag(gain);
      // A gate per head also reads the position, which no norm touches.
      CHECK(close(weight.narrow(0, 0, d), at::matmul(diagonal, w.narrow(0, 0, d))));
      CHECK(close(step.proposal.after.weights.at(reader + ".bias").load(), b + at::matmul(shift, w.narrow(0, 0, d))));
    }
  };
  for (int64_t n = 0; n < L; ++n) {
    const std::string attention = fmt::format("blocks.{}.attention.", n), mlp = fmt::format("blocks.{}.mlp.", n);
    folded(attention + "norm", 0, {attention + "query", attention + "key", attention + "value", attention + "gate"});
    folded(mlp + "norm", 1, {mlp + "up", mlp + "gate"});
    CHECK(at::equal(step.proposal.after.weights.at(mlp + "down.weight").load(), old.at(mlp + "down.weight")));
  }
  folded("norm", 1, {"head"});
  CHECK(step.saved_parameters == (2 * L + 1) * 2 * d);
  CHECK(step.proposal.after.architecture.final_norm->offset == 0);
  CHECK(difference({a, as_weights(old)}, step.proposal.after) < 1e-13);
}

TEST_CASE("fold_norm_gain: the same function, one width for each gain and each bias") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t saved;
  };
  const std::string tied = R"({"head": {"tied": true}})", dyt = R"({"norm": {"kind": "dyt"}})";
  for (const Case& c : std::vector<Case>{
           {"rms", normed(), (2 * L + 1) * d},
           {"tied: the final gain stays", normed(tied), 2 * L * d},
           {"Gemma's offset",
            normed(R"({"final_norm": {"kind": "rms", "offset": 1}})", R"({"norm": {"kind": "rms", "offset": 1}})"),
            (2 * L + 1) * d},
           {"DyT keeps its alpha", normed(tied, dyt, dyt), 2 * L * d},
           {"rope, grouped heads, qk-norm", normed("{}", R"({"rope": {}, "kv_heads": 1, "qk_norm": {"kind": "rms"}})"),
            (2 * L + 1) * d},
           {"gate", normed("{}", R"({"gate": "position"})"), (2 * L + 1) * d},
           {"collapsed", normed("{}", R"({"scores": "collapsed", "values": "collapsed"})"), (2 * L + 1) * d},
           {"gated MLP", normed("{}", "{}", R"({"gated": true})"), (2 * L + 1) * d},
           {"neuron heads take a bias too",
            normed("{}", "{}", R"({"kind": "heads", "activation": null, "norm": {"kind": "layer", "bias": true}})"),
            (2 * L + 1) * d + L * d},
           {"parallel: one norm, five readers", normed("{}", "{}", R"({"norm": null})", "parallel"), (L + 1) * d},
           {"parallel, two norms", normed("{}", "{}", "{}", "parallel"), (2 * L + 1) * d},
           {"shared blocks", normed(R"({"layers": [0, 1, 1, 0]})"), (2 * L + 1) * d},
           {"an embedding norm before a projection",
            normed(R"({"embedding": {"factor": 5, "factor_scope": "sum", "norm": {"kind": "rms"}}})"),
            (2 * L + 1) * d + 5},
           {"a head's transform", normed(R"({"head": {"transform": {"activation": "gelu", "norm": {"kind": "rms"}}}})"),
            (2 * L + 2) * d},
           {"classifier", normed(R"({"task": "classifier", "head": {"classes": 3}})", R"({"mask": "full"})"),
            (2 * L + 1) * d},
           {"a post-norm that only the MLP reads",
            normed("{}", R"({"norm": {"kind": "rms", "place": "post"}})", R"({"skip": false, "norm": null})"),
            (L + 1) * d},
           {"a bias without a gain",
            normed("{}", R"({"norm": {"kind": "rms", "gain": false, "bias": true}, )" + biases + "}"), (2 * L + 1) * d},
       }) {
    INFO(c.name);
    const Model before{c.architecture, as_weights(generic_tensors(c.architecture))};
    const PassStep step = step_of(before);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == c.saved);
    CHECK(difference(before, step.proposal.after) < 1e-13);
  }
}

TEST_CASE("fold_norm_gain: every norm that keeps its gain, and why") {
  struct Refusal {
    std::string name;
    Architecture architecture;
    std::string where, found;
  };
  const std::string post = R"({"norm": {"kind": "layer", "place": "post", "bias": true}})";
  for (const Refusal& r : std::vector<Refusal>{
           {"tied head", normed(R"({"head": {"tied": true}})"), "norm", "the head is tied to the embedding"},
           {"post-norm", normed("{}", post, post), "blocks.0.attention.norm", "blocks.0.mlp.norm reads it"},
           {"post-norm beside a writer", normed("{}", post, R"({"norm": null})"), "blocks.0.attention.norm",
            "blocks.1.attention.norm reads it"},
           {"output norm", normed("{}", R"({"norm": null, "output_norm": {"kind": "rms"}})", R"({"norm": null})"),
            "blocks.0.attention.output_norm", "blocks.1.attention.output_norm writes it"},
           {"output norm of one layer",
            normed(R"({"final_norm": null})", R"({"norm": null, "output_norm": {"kind": "rms"}})", R"({"norm": null})",
                   "serial", 1),
            "blocks.0.attention.output_norm", "embed.token.weight writes the same stream"},
           {"identity reader", normed("{}", R"({"query": "identity"})"), "blocks.1.attention.norm",
            "blocks.1.attention.query has no matrix"},
           {"biasless readers", normed("{}", layer_norm + "}"), "blocks.0.attention.norm",
            "no bias in blocks.0.attention.query, blocks.0.attention.key, blocks.0.attention.value"},
           {"a biasless head", normed(R"({"final_norm": {"kind": "layer", "gain": false, "bias": true}})"), "norm",
            "no bias in head"},
           {"an encoder's final norm", normed(R"({"task": "encoder"})", R"({"mask": "full"})"), "norm",
            "it is the model's answer (hidden)"},
           {"an embedding norm", normed(R"({"embedding": {"norm": {"kind": "rms"}}})"), "embed.norm",
            "blocks.0.attention.norm reads it"},
           {"a slim cache takes the bias off again", normed("{}", layer_norm + R"(, "cache": "k", )" + biases + "}"),
            "blocks.0.attention.norm", "no bias in blocks.0.attention.key under a slim cache"},
           {"no gain", normed("{}", R"({"norm": {"kind": "rms", "gain": false}})"), "blocks.0.attention.norm",
            "there is none"},
       }) {
    INFO(r.name);
    const Model before{r.architecture, as_weights(generic_tensors(r.architecture))};
    const PassStep step = step_of(before);
    CHECK_FALSE(about(step, r.where).holds);
    CHECK(about(step, r.where).found == r.found);
    if (step.proposal.applies) {  // the other norms still fold
      CHECK(difference(before, step.proposal.after) < 1e-13);
    }
  }
  const PassStep bare =
      step_of({.architecture = normed(R"({"final_norm": null})", R"({"norm": null})", R"({"norm": null})")});
  CHECK_FALSE(bare.proposal.applies);
  CHECK(about(bare, "model").found == "it has no norms");
}

TEST_CASE("choose_passes: a norm's bias folds before its readers' biases go") {
  const Architecture a = normed(R"({"final_norm": null})", layer_norm + ", " + biases + "}",
                                R"({"norm": {"kind": "layer", "bias": true}, "bias": {"up": true}})");
  const Model before{a, as_weights(generic_tensors(a))};
  const auto saved = [](const Pipeline& pipeline) {  // by what moves gains and biases
    int64_t sum = 0;
    for (const PassStep& step : pipeline.steps) {
      sum += step.call.pass->id.find("bias") != std::string::npos || step.call.pass->id == "fold_norm_gain"
                 ? step.saved_parameters
                 : 0;
    }
    return sum;
  };
  const Pipeline best = run_passes(before, parse_passes("fold_norm_gain,drop_key_bias,fold_value_bias"));
  REQUIRE(saved(best) == L * (4 * d + 2 * d));
  const Pipeline chosen = choose_passes(before);
  REQUIRE(chosen.steps.size() == 4);  // and then shrink_head_pairs
  for (size_t i = 0; i < 3; ++i) {
    CHECK(chosen.steps[i].call.pass == best.steps[i].call.pass);
    CHECK(chosen.steps[i].saved_parameters == best.steps[i].saved_parameters);
  }
}

}  // namespace pare::test
