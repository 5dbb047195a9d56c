// Collapsed heads against loops over heads, what they cost, whom the pass refuses, and two refusals shown to be needed.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, L = 2;
const std::string biases_of_all = R"("bias": {"query": true, "key": true, "value": true, "output": true})";

Architecture headed(const std::string& attention = "{}", const std::string& model = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2, "attention": {"heads": 4, "head_width": 3},
      "mlp": {"width": 11, "activation": "gelu"}})");
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  return small_architecture(d, block, model);
}

PassStep collapse_step(const Model& model, const std::string& pairs = "all") {
  return run_passes(model, {call_of(find_pass("collapse_heads"), {{"pairs", pairs}})}).steps.at(0);
}

double entry(const Tensors& tensors, const std::string& name, int64_t i, int64_t j) {
  return tensors.at(name)[i][j].item<double>();
}

// Proposition 4.1, one number at a time; matrices are stored [out, in].
void check_products(int64_t kv_heads) {
  const Architecture a = headed(fmt::format(R"({{"kv_heads": {}, {}}})", kv_heads, biases_of_all));
  const Tensors old = generic_tensors(a, 3);
  const PassStep step = collapse_step({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  const Weights& now = step.proposal.after.weights;
  const int64_t k = 3, share = 4 / kv_heads;
  for (const std::string at : {"blocks.0.attention.", "blocks.1.attention."}) {
    const at::Tensor qk = now.at(at + "qk.weight").load(), offset = now.at(at + "qk.bias").load();
    const at::Tensor vo = now.at(at + "vo.weight").load(), bias = now.at(at + "output.bias").load();
    std::vector<double> moved(d, 0.0);
    for (int64_t h = 0; h < 4; ++h) {
      const int64_t g = h / share;
      for (int64_t i = 0; i < d; ++i) {
        double off = 0;
        for (int64_t e = 0; e < k; ++e) {
          off += old.at(at + "query.bias")[h * k + e].item<double>() * entry(old, at + "key.weight", g * k + e, i);
          moved[i] +=
              old.at(at + "value.bias")[g * k + e].item<double>() * entry(old, at + "output.weight", i, h * k + e);
        }
        CHECK(offset[h][i].item<double>() == doctest::Approx(off).epsilon(1e-12));
        for (int64_t j = 0; j < d; ++j) {
          double score = 0, value = 0;
          for (int64_t e = 0; e < k; ++e) {
            score += entry(old, at + "query.weight", h * k + e, i) * entry(old, at + "key.weight", g * k + e, j);
            value += entry(old, at + "value.weight", g * k + e, i) * entry(old, at + "output.weight", j, h * k + e);
          }
          CHECK(qk[h][i][j].item<double>() == doctest::Approx(score).epsilon(1e-12));
          CHECK(vo[h][i][j].item<double>() == doctest::Approx(value).epsilon(1e-12));
        }
      }
    }
    for (int64_t i = 0; i < d; ++i) {
      const double sum = old.at(at + "output.bias")[i].item<double>() + moved[i];
      CHECK(bias[i].item<double>() == doctest::Approx(sum).epsilon(1e-12));
    }
    for (const char* gone : {"query.weight", "key.weight", "key.bias", "value.weight", "value.bias", "output.weight"}) {
      CHECK_FALSE(now.contains(at + gone));
    }
  }
}

}  // namespace

TEST_CASE("collapse_heads: every number is what proposition 4.1 says, each group's key and value for all its heads") {
  for (const int64_t kv_heads : {4, 2, 1}) {
    check_products(kv_heads);
  }
}

TEST_CASE("collapse_heads: the same function, and exactly as many parameters as promised") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t saved;
    std::string pairs = "all";
  };
  const int64_t grown = 2 * 4 * 3 * d - 4 * d * d;  // of one pair, heads of 3: negative
  const std::string wide = R"("heads": 1, "head_width": 7)";
  const int64_t smaller = 2 * 7 * d - d * d;
  for (const Case& c : std::vector<Case>{
           {"grows", headed(), L * 2 * grown},
           {"scores alone", headed(), L * grown, "qk"},
           {"values alone", headed(), L * grown, "vo"},
           {"one wide head saves", headed("{" + wide + "}"), L * 2 * smaller, "saving"},
           {"one wide head, biases", headed("{" + wide + ", " + biases_of_all + "}"), L * (2 * smaller + 3 * 7 - d),
            "saving"},
           {"b_O is created", headed("{" + wide + R"(, "bias": {"value": true}})"), L * (2 * smaller + 7 - d),
            "saving"},
           {"rope: values alone", headed("{" + wide + R"(, "rope": {"width": 4}})"), L * smaller, "saving"},
           {"qk-norm: values alone", headed("{" + wide + R"(, "qk_norm": {"kind": "rms"}})"), L * smaller, "saving"},
           {"query is key: values alone", headed("{" + wide + R"(, "query": "key"})"), L * smaller, "saving"},
           {"softcap without a key bias", headed("{" + wide + R"(, "softcap": 1.5, "bias": {"query": true}})"),
            L * (2 * smaller + 7 - d), "saving"},
           {"softcap with a key bias: values alone", headed("{" + wide + R"(, "softcap": 1.5, "bias": {"key": true}})"),
            L * smaller, "saving"},
           {"gate", headed("{" + wide + R"(, "gate": "position"})"), L * 2 * smaller, "saving"},
           {"gate with a value bias: scores alone",
            headed("{" + wide + R"(, "gate": "position", "bias": {"value": true}})"), L * smaller, "saving"},
           {"shaped", headed("{" + wide + R"(, "shaped": true})"), L * 2 * smaller, "saving"},
           {"alibi, window, norms",
            headed("{" + wide +
                   R"(, "alibi": {}, "window": 2, "scale": 0.3, "norm": {"kind": "layer", "bias": true}})"),
            L * 2 * smaller, "saving"},
           {"as wide as the model", headed(R"({"heads": 1, "head_width": 8})"), L * 2 * d * d, "saving"},
           {"wider than the model", headed(R"({"heads": 2, "head_width": 12})"), L * 2 * (2 * 2 * 12 * d - 2 * d * d),
            "saving"},
           {"encoder", headed("{" + wide + R"(, "mask": "full"})", R"({"task": "encoder"})"), L * 2 * smaller,
            "saving"},
           {"shared blocks", headed("{" + wide + "}", R"({"layers": [1, 0, 0, 1]})"), L * 2 * smaller, "saving"},
       }) {
    INFO(c.name);
    const Model before{c.architecture, as_weights(generic_tensors(c.architecture))};
    const PassStep step = collapse_step(before, c.pairs);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == c.saved);
    CHECK(difference(before, step.proposal.after) < 1e-12);
    CHECK(step.proposal.notes.empty() == (c.saved > 0));
  }
  CHECK(collapse_step({.architecture = headed()}).proposal.notes.at(0) ==
        fmt::format("products are larger than their factors: {} parameters more", -L * 2 * grown));
}

TEST_CASE("collapse_heads: what it refuses, where and why") {
  struct Refusal {
    std::string attention, pairs, where, found;
    bool remedied;
  };
  for (const Refusal& r : std::vector<Refusal>{
           {"{}", "saving", "blocks.0.attention.qk", "256 parameters in place of 192", true},
           {R"({"rope": {"width": 2}})", "qk", "blocks.0.attention.qk", "RoPE rotates 2 of 3 dimensions", true},
           {R"({"qk_norm": {"kind": "rms"}})", "qk", "blocks.0.attention.qk", "queries and keys are normalised", true},
           {R"({"softcap": 2, "bias": {"key": true}})", "qk", "blocks.0.attention.qk", "softcap 2", true},
           {R"({"gate": "position", "bias": {"value": true}})", "vo", "blocks.0.attention.vo",
            "a gate scales each head after attention", true},
           {R"({"shaped": true, "bias": {"value": true}})", "vo", "blocks.0.attention.vo",
            "its rows sum to alpha + beta - gamma", true},
           {R"({"query": "key"})", "qk", "blocks.0.attention.qk", "the query is the key", true},
           {R"({"head_width": 2, "query": "identity"})", "qk", "blocks.0.attention.qk",
            "blocks.0.attention.query is not a whole matrix of its own", false},
           {R"({"pairs": {"value_output": "shrunk"}})", "vo", "blocks.0.attention.vo",
            "blocks.0.attention.value is not a whole matrix of its own", false},
           {R"({"scores": "collapsed"})", "qk", "blocks.0.attention.qk", "they are one already", false},
           {R"({"cache": "k"})", "qk", "blocks.0.attention.qk", "one of them is computed from what is cached", true},
           {R"({"cache": "x"})", "vo", "blocks.0.attention.vo", "one of them is computed from what is cached", true},
       }) {
    INFO(r.attention, " ", r.pairs);
    const PassStep step = collapse_step({.architecture = headed(r.attention)}, r.pairs);
    CHECK_FALSE(step.proposal.applies);
    REQUIRE(step.proposal.preconditions.size() >= L);
    CHECK(step.proposal.preconditions[0].where == r.where);
    CHECK(step.proposal.preconditions[0].found == r.found);
    CHECK(step.proposal.preconditions[0].remedy.empty() != r.remedied);
  }
  const PassStep table = collapse_step({.architecture = headed(R"({"rope": {"width": 2}})", R"({"first_layer": "table",
      "embedding": {"position": "none"}})")},
                                       "vo");
  CHECK(table.proposal.preconditions[0].found == "they are inside the first-layer table");
  CHECK(table.proposal.preconditions[1].holds);
}

TEST_CASE("collapse_heads: dropping a key bias under a cap, or moving a value bias past a gate, would show") {
  for (const auto& [attention, bias] :
       {std::pair(R"({"softcap": 0.5, "bias": {"key": true}})", "key"),
        std::pair(R"({"gate": "position", "bias": {"value": true, "output": true}})", "value")}) {
    INFO(bias);
    const Architecture a = headed(attention);
    const Tensors tensors = generic_tensors(a);
    Tensors anyway = tensors;
    for (const std::string at : {"blocks.0.attention.", "blocks.1.attention."}) {
      if (std::string(bias) == "value") {
        anyway[at + "output.bias"] =
            tensors.at(at + "output.bias") + at::mv(tensors.at(at + "output.weight"), tensors.at(at + "value.bias"));
      }
      anyway[at + bias + ".bias"] = at::zeros_like(tensors.at(at + bias + ".bias"));
    }
    CHECK(difference({a, as_weights(tensors)}, {a, as_weights(anyway)}) > 1e-4);
  }
}

}  // namespace pare::test
