// A table for the first layer: its rows against the projections that the executor computes and against plain sums, what
// it takes the place of, and what refuses it.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "pare/arch/count.h"
#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, V = 19;

Architecture rotating(const std::string& attention = "{}", const std::string& model = "{}") {
  nlohmann::json block =
      nlohmann::json::parse(R"({"repeat": 2, "attention": {"heads": 4, "kv_heads": 2, "head_width": 2,
      "rope": {}, "norm": {"kind": "rms"}}, "mlp": {"width": 11, "activation": "gelu"}})");
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  nlohmann::json text = {{"width", d}, {"vocab", V}, {"context", 12}};
  text["blocks"] = nlohmann::json::array({block});
  text.merge_patch(nlohmann::json::parse(model));
  return architecture_from_json(text, "test");
}

PassStep step_of(const Model& model) {
  return run_passes(model, {call_of(find_pass("precompute_first_layer"))}).steps.at(0);
}

}  // namespace

TEST_CASE("precompute_first_layer: a row is the token and what the first layer makes of it, number by number") {
  const Architecture a = rotating(R"({"norm": {"kind": "rms", "offset": 1.0, "epsilon": 0.01}, "bias": {"key": true}})",
                                  R"({"embedding": {"scale": 1.5}})");
  const Tensors old = generic_tensors(a);
  const PassStep step = step_of({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  const at::Tensor table = step.proposal.after.weights.at("embed.table.weight").load();
  REQUIRE(table.sizes() == at::IntArrayRef({V, d + 8 + 4 + 4}));
  const auto entry = [&](const char* name, int64_t i, int64_t j) { return old.at(name)[i][j].item<double>(); };
  for (int64_t token = 0; token < V; ++token) {
    std::vector<double> x, h;
    double squares = 0;
    for (int64_t i = 0; i < d; ++i) {
      x.push_back(1.5 * entry("embed.token.weight", token, i));
      squares += x.back() * x.back();
    }
    for (int64_t i = 0; i < d; ++i) {
      const double gain = 1 + old.at("blocks.0.attention.norm.weight")[i].item<double>();
      h.push_back(x[i] / std::sqrt(squares / d + 0.01) * gain);
    }
    const auto projected = [&](const char* name, int64_t row) {
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) {
        sum += h[i] * entry(name, row, i);
      }
      return sum;
    };
    std::vector<double> expected = x;
    for (int64_t i = 0; i < 8; ++i) {
      expected.push_back(projected("blocks.0.attention.query.weight", i));
    }
    for (int64_t i = 0; i < 4; ++i) {
      expected.push_back(projected("blocks.0.attention.key.weight", i) +
                         old.at("blocks.0.attention.key.bias")[i].item<double>());
    }
    for (int64_t i = 0; i < 4; ++i) {
      expected.push_back(projected("blocks.0.attention.value.weight", i));
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      CHECK(table[token][static_cast<int64_t>(i)].item<double>() == doctest::Approx(expected[i]).epsilon(1e-12));
    }
  }
  // A few rows can be had without the rest, where the token table gives a few.
  Weights in_rows = as_weights(old);
  const at::Tensor tokens = old.at("embed.token.weight");
  in_rows["embed.token.weight"] = Weight::leaf(
      "embed.token.weight", Dtype::f64, {V, d}, [=] { return tokens.clone(); },
      [=](int64_t begin, int64_t rows) { return tokens.narrow(0, begin, rows).clone(); });
  const Weight weight = step_of({a, in_rows}).proposal.after.weights.at("embed.table.weight");
  REQUIRE(weight.can_load_rows());
  CHECK(at::allclose(weight.load_rows(5, 3), table.narrow(0, 5, 3), 1e-14, 1e-14));
}

TEST_CASE("precompute_first_layer: the same function, and exactly as many parameters as promised") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t gone;  // besides the table
  };
  constexpr int64_t projections = 16 * d, table = V * (d + 16);
  const std::string factor_token = R"({"embedding": {"factor": 5, "factor_scope": "token", "factor_bias": true}})";
  const std::string factor_sum =
      R"({"embedding": {"factor": 5, "factor_scope": "sum", "norm": {"kind": "layer", "bias": true}}})";
  for (const Case& c : std::vector<Case>{
           {"rope", rotating(), V * d + projections + d},
           {"tied: the head keeps the token table", rotating("{}", R"({"head": {"tied": true}})"), projections + d},
           {"alibi, no norm", rotating(R"({"rope": null, "alibi": {}, "norm": null})"), V * d + projections},
           {"layer norm, all biases", rotating(R"({"norm": {"kind": "layer", "bias": true},
              "bias": {"query": true, "key": true, "value": true, "output": true}})"),
            V * d + projections + 2 * d + 16},
           {"dyt", rotating(R"({"norm": {"kind": "dyt", "bias": true}})"), V * d + projections + 2 * d + 1},
           {"post-norm stays", rotating(R"({"norm": {"kind": "layer", "place": "post"}})"), V * d + projections},
           {"qk-norm, softcap, window", rotating(R"({"qk_norm": {"kind": "rms"}, "softcap": 0.7, "window": 3})"),
            V * d + projections + d},
           {"an embedding norm",
            rotating("{}", R"({"embedding": {"norm": {"kind": "layer", "bias": true}, "scale": 3}})"),
            V * d + projections + 3 * d},
           {"factor before the sum", rotating("{}", factor_token), V * 5 + 5 * d + d + projections + d},
           {"factor after the sum", rotating("{}", factor_sum), V * 5 + 5 * d + 10 + projections + d},
           {"no positions at all", rotating(R"({"rope": null})"), V * d + projections + d},
           {"the first layer runs block 1", rotating("{}", R"({"layers": [1, 0, 0]})"), V * d + projections + d},
           {"an encoder", rotating(R"({"mask": "full"})", R"({"task": "encoder"})"), V * d + projections + d},
       }) {
    INFO(c.name);
    const Model before{c.architecture, as_weights(generic_tensors(c.architecture))};
    const PassStep step = step_of(before);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == c.gone - table);
    CHECK(step.proposal.after.weights.size() == tensor_table(step.proposal.after.architecture).size());
    CHECK(difference(before, step.proposal.after) < 1e-13);
    CHECK(step_of({c.architecture}).saved_parameters == step.saved_parameters);  // structure alone says the same
    CHECK(step.proposal.notes.at(0) ==
          fmt::format(
              "a table of {} parameters for {}: a token reads one row of {} where the first layer had to multiply",
              table, c.gone, d + 16));
    const PassStep again = step_of(step.proposal.after);
    CHECK_FALSE(again.proposal.applies);
    CHECK(again.proposal.preconditions.at(0).found == "it is a table already");
  }
}

TEST_CASE("precompute_first_layer: queries of every kind") {
  for (const char* attention :
       {R"({"kv_heads": 4, "query": "key", "bias": {"key": true}})", R"({"query": "identity"})",
        R"({"kv_heads": 4, "key": "identity", "value": "identity", "bias": {"key": true}})",
        R"({"query": {"nonlinear": {"width": 5, "activation": "gelu"}}, "bias": {"query": true}})"}) {
    INFO(attention);
    const Architecture a = rotating(attention);
    const Model before{a, as_weights(generic_tensors(a))};
    const PassStep step = step_of(before);
    REQUIRE(step.proposal.applies);
    CHECK(difference(before, step.proposal.after) < 1e-13);
  }
}

TEST_CASE("precompute_first_layer: every reason against it, at once") {
  struct Case {
    Architecture architecture;
    std::string where, found;
  };
  for (const Case& c : std::vector<Case>{
           {rotating("{}", R"({"embedding": {"position": "learned"}})"), "embed.position", "learned positions"},
           {rotating("{}", R"({"embedding": {"position": "sinusoidal"}})"), "embed.position", "sinusoidal positions"},
           {rotating("{}", R"({"embedding": {"types": 2}})"), "embed.type", "their rows are added to the token's"},
           {rotating("{}", R"({"layers": [0, 1, 0]})"), "blocks.0", "2 layers run it"},
           {rotating(R"({"gate": "position"})"), "blocks.0.attention.gate", "it reads the same input"},
           {rotating(R"({"scores": "collapsed", "rope": null})"), "blocks.0.attention",
            "they are collapsed, shrunk or computed from each other"},
           {rotating(R"({"cache": "x"})"), "blocks.0.attention",
            "they are collapsed, shrunk or computed from each other"},
           {rotating(R"({"pairs": {"value_output": "shrunk"}})"), "blocks.0.attention",
            "they are collapsed, shrunk or computed from each other"},
       }) {
    INFO(c.found);
    const PassStep step = step_of({c.architecture, as_weights(generic_tensors(c.architecture))});
    CHECK_FALSE(step.proposal.applies);
    CHECK(step.proposal.after.architecture == c.architecture);
    std::vector<Precondition> failed;
    for (const Precondition& p : step.proposal.preconditions) {
      if (!p.holds) {
        failed.push_back(p);
        CHECK_FALSE(p.remedy.empty());
      }
    }
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].where == c.where);
    CHECK(failed[0].found == c.found);
  }
  Architecture several = rotating(R"({"gate": "position"})", R"({"embedding": {"position": "learned", "types": 2}})");
  several.blocks[0].wiring = several.blocks[1].wiring = Wiring::parallel;
  const PassStep step = step_of({several});
  CHECK(std::count_if(step.proposal.preconditions.begin(), step.proposal.preconditions.end(),
                      [](const Precondition& p) { return !p.holds; }) == 4);
}

}  // namespace pare::test
