// A value's bias against a loop over heads, who may take it, and the one refusal shown to be needed.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, L = 2;

Architecture biased(const std::string& attention = "{}", const std::string& model = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2, "attention": {"heads": 4, "head_width": 2,
      "bias": {"value": true, "output": true}}, "mlp": {"width": 11, "activation": "gelu"}})");
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  return small_architecture(d, block, model);
}

PassStep step_of(const Model& model) {
  return run_passes(model, {call_of(find_pass("fold_value_bias"))}).steps.at(0);
}

// b_O + Σ_h b_V[group of h] O_h, one number at a time.
std::vector<double> by_hand(const Tensors& tensors, const std::string& name, int64_t heads, int64_t kv_heads) {
  const int64_t k = 2, group = heads / kv_heads;
  std::vector<double> sum;
  for (int64_t i = 0; i < d; ++i) {
    double entry = tensors.at(name + "output.bias")[i].item<double>();
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t j = 0; j < k; ++j) {
        entry += tensors.at(name + "value.bias")[h / group * k + j].item<double>() *
                 tensors.at(name + "output.weight")[i][h * k + j].item<double>();
      }
    }
    sum.push_back(entry);
  }
  return sum;
}

}  // namespace

TEST_CASE("fold_value_bias: the new bias is b_O + b_V O, each group's bias read by all of its heads") {
  for (int64_t kv_heads : {4, 2, 1}) {
    const Architecture a = biased(R"({"kv_heads": )" + std::to_string(kv_heads) + "}");
    const Tensors old = generic_tensors(a);
    const PassStep step = step_of({a, as_weights(old)});
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == L * kv_heads * 2);
    CHECK(step.proposal.after.weights.size() == old.size() - L);
    for (const auto& [name, weight] : step.proposal.after.weights) {
      if (!name.ends_with("attention.output.bias")) {
        CHECK_MESSAGE(at::equal(weight.load(), old.at(name)), name);
        continue;
      }
      const std::vector<double> expected = by_hand(old, name.substr(0, name.size() - 11), 4, kv_heads);
      const at::Tensor bias = weight.load();
      for (int64_t i = 0; i < d; ++i) {
        CHECK(bias[i].item<double>() == doctest::Approx(expected[i]).epsilon(1e-13));
      }
    }
  }
}

TEST_CASE("fold_value_bias: the same function, and exactly as many parameters as promised") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t saved;
  };
  const std::string alone = R"({"bias": {"output": false}})";
  for (const Case& c : std::vector<Case>{
           {"plain", biased(), L * d},
           {"rope, qk-norm, softcap", biased(R"({"rope": {}, "qk_norm": {"kind": "rms"}, "softcap": 0.7})"), L * d},
           {"norms, also on the output",
            biased(R"({"norm": {"kind": "layer", "bias": true}, "output_norm": {"kind": "rms"}})"), L * d},
           {"alibi, window", biased(R"({"alibi": {}, "window": 2})"), L * d},
           {"query is key", biased(R"({"query": "key"})"), L * d},
           {"collapsed scores", biased(R"({"scores": "collapsed"})"), L * d},
           {"identity output", biased(R"({"output": "identity"})"), L * d},
           {"identity value", biased(R"({"value": "identity"})"), L * d},
           {"shrunk value", biased(R"({"kv_heads": 2, "pairs": {"value_output": "shrunk"}})"), L * 4},
           {"cache of keys", biased(R"({"cache": "k", "bias": {"key": true}})"), L * d},
           {"cache of values", biased(R"({"cache": "v", "bias": {"key": true}})"), L * d},
           {"parallel", biased("{}", R"({"head": {"tied": true}})"), L * d},
           {"shared blocks", biased("{}", R"({"layers": [1, 0, 0, 1]})"), L * d},
           {"encoder", biased(R"({"mask": "full"})", R"({"task": "encoder"})"), L * d},
           {"b_O is created: as many", biased(alone), 0},
           {"b_O is created: more", biased(R"({"kv_heads": 1, "bias": {"output": false}})"), L * (2 - d)},
       }) {
    INFO(c.name);
    const Model before{c.architecture, as_weights(generic_tensors(c.architecture))};
    const PassStep step = step_of(before);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == c.saved);
    CHECK(difference(before, step.proposal.after) < 1e-13);
    const bool created = !c.architecture.blocks[0].attention.bias.output;
    CHECK(step.proposal.notes.empty() != created);
    if (created) {
      CHECK(step.proposal.notes.at(0) == "output biases have to be created: 16 parameters more");
    }
  }
}

TEST_CASE("fold_value_bias: not through a gate or shaped attention, and doing it anyway would show") {
  for (const auto& [attention, found] :
       {std::pair(R"({"gate": "position"})", "a gate scales each head after attention"),
        std::pair(R"({"shaped": true})", "rows that sum to alpha + beta - gamma of their head")}) {
    CAPTURE(attention);
    const Architecture a = biased(attention);
    const Tensors tensors = generic_tensors(a);
    const Model before{a, as_weights(tensors)};
    const PassStep step = step_of(before);
    CHECK_FALSE(step.proposal.applies);
    CHECK(step.proposal.after.architecture == a);
    REQUIRE(step.proposal.preconditions.size() == L);
    CHECK(step.proposal.preconditions[1].where == "blocks.1.attention.value.bias");
    CHECK(step.proposal.preconditions[1].found == found);

    Tensors anyway = tensors;
    for (const char* name : {"blocks.0.attention.", "blocks.1.attention."}) {
      anyway[std::string(name) + "output.bias"] = at::tensor(by_hand(tensors, name, 4, 4), at::kDouble);
      anyway[std::string(name) + "value.bias"].zero_();
    }
    CHECK(difference({a, as_weights(generic_tensors(a))}, {a, as_weights(anyway)}) > 1e-4);
  }
}

TEST_CASE("fold_value_bias: nothing where there is no value bias") {
  for (const char* attention :
       {R"({"bias": {"value": false}})", R"({"values": "collapsed", "bias": {"value": false}})"}) {
    const PassStep none = step_of({.architecture = biased(attention)});
    CHECK_FALSE(none.proposal.applies);
    CHECK(none.proposal.preconditions[0].where == "blocks.0.attention.value.bias");
    CHECK(none.proposal.preconditions[0].found == "there is none");
  }
  const PassStep table = step_of({.architecture = biased("{}", R"({"first_layer": "table",
      "embedding": {"position": "none"}})")});
  CHECK(table.saved_parameters == d);
  CHECK(table.proposal.preconditions[0].found == "it is inside the first-layer table");
}

}  // namespace pare::test
