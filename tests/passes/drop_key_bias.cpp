// A key's bias against attention written out by hand, and each refusal shown to be needed.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t L = 2;

Architecture biased(const std::string& attention = "{}", const std::string& model = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2, "attention": {"heads": 2, "head_width": 4,
      "bias": {"query": true, "key": true, "value": true, "output": true}},
      "mlp": {"width": 11, "activation": "gelu"}})");
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  nlohmann::json text = {{"width", 8}, {"vocab", 19}, {"context", 12}, {"embedding", {{"position", "learned"}}}};
  text["blocks"] = nlohmann::json::array({block});
  text.merge_patch(nlohmann::json::parse(model));
  return architecture_from_json(text, "test");
}

PassStep step_of(const Model& model) {
  return run_passes(model, {call_of(find_pass("drop_key_bias"))}).steps.at(0);
}

// The model without its key biases, whether or not that is the same function.
Model without_key_bias(const Model& model) {
  Model after = model;
  for (Block& block : after.architecture.blocks) {
    block.attention.bias.key = false;
  }
  std::erase_if(after.weights, [](const auto& entry) { return entry.first.ends_with("attention.key.bias"); });
  return after;
}

}  // namespace

// One head over the keys of one text, in plain algebra: the scores of a query move together.
TEST_CASE("drop_key_bias: the theorem on matrices") {
  at::manual_seed(1);
  const auto random = [](int64_t rows, int64_t columns) { return at::randn({rows, columns}, at::kDouble); };
  const at::Tensor x = random(6, 8), q = random(8, 4), k = random(8, 4), b_q = random(1, 4), b_k = random(1, 4);
  const at::Tensor queries = at::matmul(x, q) + b_q, keys = at::matmul(x, k);
  const at::Tensor with = at::matmul(queries, (keys + b_k).t()), without = at::matmul(queries, keys.t());
  CHECK((with - without - at::matmul(queries, b_k.t())).abs().max().item<double>() < 1e-13);
  CHECK((at::softmax(with, -1) - at::softmax(without, -1)).abs().max().item<double>() < 1e-13);
}

TEST_CASE("drop_key_bias: only the key biases go, and nothing else is touched") {
  const Architecture a = biased();
  const Tensors old = generic_tensors(a);
  const PassStep step = step_of({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  CHECK(step.proposal.after.architecture == without_key_bias({a, {}}).architecture);
  CHECK(step.proposal.after.weights.size() == old.size() - L);
  for (const auto& [name, weight] : step.proposal.after.weights) {
    CHECK_MESSAGE(at::equal(weight.load(), old.at(name)), name);
  }
  CHECK(step.proposal.roundings == 0);  // no arithmetic, so nothing to predict
}

TEST_CASE("drop_key_bias: the same function, kv_heads times head_width fewer in each stored block") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t saved;
  };
  for (const Case& c : std::vector<Case>{
           {"plain", biased(), L * 8},
           {"one key/value head", biased(R"({"kv_heads": 1})"), L * 4},
           {"norms on the stream", biased(R"({"norm": {"kind": "layer", "bias": true}})"), L * 8},
           {"alibi, window, scale", biased(R"({"alibi": {}, "window": 3, "scale": 0.4})"), L * 8},
           {"gate", biased(R"({"gate": "position"})"), L * 8},
           {"identity key", biased(R"({"key": "identity"})"), L * 8},
           {"identity query", biased(R"({"query": "identity"})"), L * 8},
           {"full mask", biased(R"({"mask": "full"})", R"({"task": "masked_lm"})"), L * 8},
           {"cache of keys", biased(R"({"cache": "k"})"), L * 8},
           {"cache of values", biased(R"({"cache": "v"})"), L * 8},
           {"shared blocks", biased("{}", R"({"layers": [0, 1, 0, 0]})"), L * 8},
       }) {
    INFO(c.name);
    const Model before{c.architecture, as_weights(generic_tensors(c.architecture))};
    const PassStep step = step_of(before);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == c.saved);
    CHECK(difference(before, step.proposal.after) < 1e-13);
  }
}

TEST_CASE("drop_key_bias: every refusal names its reason, and doing it anyway would show") {
  struct Refusal {
    std::string name;
    Architecture architecture;
    std::string found;
  };
  for (const Refusal& r : std::vector<Refusal>{
           {"rope", biased(R"({"rope": {}})"), "RoPE rotates 4 of 4 dimensions"},
           {"rope in part", biased(R"({"rope": {"width": 2, "layout": "interleaved"}})"),
            "RoPE rotates 2 of 4 dimensions"},
           {"qk-norm", biased(R"({"qk_norm": {"kind": "rms"}})"), "the key is normalised after its bias"},
           {"softcap", biased(R"({"softcap": 0.7})"), "softcap 0.7"},
           {"query is key", biased(R"({"query": "key", "bias": {"query": false}})"), "the query is the key"},
       }) {
    INFO(r.name);
    const Model before{r.architecture, as_weights(generic_tensors(r.architecture))};
    const PassStep step = step_of(before);
    CHECK_FALSE(step.proposal.applies);
    CHECK(step.proposal.after.architecture == r.architecture);
    REQUIRE(step.proposal.preconditions.size() == L);
    for (int64_t n = 0; n < L; ++n) {
      const Precondition& p = step.proposal.preconditions[n];
      CHECK_FALSE(p.holds);
      CHECK(p.where == "blocks." + std::to_string(n) + ".attention.key.bias");
      CHECK(p.found == r.found);
    }
    CHECK(difference(before, without_key_bias(before)) > 1e-4);
  }
}

TEST_CASE("drop_key_bias: block by block, and nothing where there is no bias") {
  Architecture mixed = biased();
  mixed.blocks[0].attention.softcap = 1.5;
  const Model before{mixed, as_weights(generic_tensors(mixed))};
  const PassStep step = step_of(before);
  CHECK(step.proposal.applies);
  CHECK(step.saved_parameters == 8);
  CHECK(step.proposal.after.weights.contains("blocks.0.attention.key.bias"));
  CHECK_FALSE(step.proposal.preconditions[0].holds);
  CHECK(step.proposal.preconditions[1].holds);
  CHECK(difference(before, step.proposal.after) < 1e-13);

  for (const char* attention : {R"({"bias": {"key": false}})", R"({"scores": "collapsed", "bias": {"key": false}})"}) {
    const PassStep none = step_of({.architecture = biased(attention)});
    CHECK_FALSE(none.proposal.applies);
    CHECK(none.proposal.preconditions[0].found == "there is none");
  }
  const PassStep table = step_of({.architecture = biased("{}", R"({"first_layer": "table",
      "embedding": {"position": "none"}})")});
  CHECK(table.saved_parameters == 8);
  CHECK(table.proposal.preconditions[0].found == "it is inside the first-layer table");
}

}  // namespace pare::test
