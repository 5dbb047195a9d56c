// Slim caches: the new matrix against a pseudoinverse taken here, the same answers token by token from a cache of half
// the size, and what is lost on badly conditioned keys.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pare/algebra/operations.h"
#include "pare/arch/count.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, L = 2;
const std::string with_biases = R"("bias": {"query": true, "key": true, "value": true, "output": true})";

Architecture cached(const std::string& attention = "{}", const std::string& model = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2, "attention": {"heads": 4, "head_width": 2},
      "mlp": {"width": 11, "activation": "gelu"}})");
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  return small_architecture(d, block, model);
}

PassStep cache_step(const Model& model, const std::string& keep) {
  return run_passes(model, {call_of(find_pass("cache_keys_only"), {{"keep", keep}})}).steps.at(0);
}

// One token after another, each from what the layers remember of those before.
at::Tensor decoded(const Model& model, const Inputs& inputs) {
  const Executor executor(model, at::kDouble);
  Cache cache;
  std::vector<at::Tensor> logits;
  for (int64_t i = 0; i < inputs.ids.size(1); ++i) {
    Inputs token;
    token.ids = inputs.ids.narrow(1, i, 1);
    logits.push_back(executor.forward(token, &cache).logits);
  }
  return at::cat(logits, 1);
}

double decoded_difference(const Model& before, const Model& after) {
  const Inputs inputs = random_inputs(before.architecture, 2, 7);
  return relative_error(decoded(after, inputs), answer(before, inputs));
}

at::Tensor random_of_condition(double condition) {
  const auto orthogonal = [] { return std::get<0>(at::linalg_qr(at::randn({d, d}, at::kDouble))); };
  return at::matmul(orthogonal() * at::pow(condition, at::linspace(0, -1, d, at::kDouble)), orthogonal());
}

Model in_type(Model model, Dtype dtype) {
  for (auto& [name, weight] : model.weights) {
    weight = rounded(weight, dtype);
  }
  return model;
}

}  // namespace

TEST_CASE("cache_keys_only: the matrix is the pseudoinverse of one times the other") {
  // QK-norm, so that no gauge is taken and the old matrices are the ones that are inverted.
  for (const std::string shape : {R"("head_width": 2)", R"("head_width": 3)"}) {
    for (const std::string keep : {"k", "v"}) {
      INFO(shape, " keep=", keep);
      const Architecture a =
          cached("{" + shape + R"(, "qk_norm": {"kind": "rms"}, "output": "dense", )" + with_biases + "}");
      const Tensors old = generic_tensors(a, 2);
      const PassStep step = cache_step({a, as_weights(old)}, keep);
      REQUIRE(step.proposal.applies);
      const std::string kept = keep == "k" ? "key" : "value", dropped = keep == "k" ? "value" : "key";
      for (const std::string at : {"blocks.0.attention.", "blocks.1.attention."}) {
        const Weights& now = step.proposal.after.weights;
        CHECK_FALSE(now.contains(at + dropped + ".weight"));
        CHECK(at::equal(now.at(at + dropped + ".bias").load(), old.at(at + dropped + ".bias")));
        const at::Tensor made = now.at(at + dropped + "_from_" + kept + ".weight").load();
        const at::Tensor in_use = now.at(at + kept + ".weight").load();  // the value may be in its own gauge
        // As rows: x W_K M = x W_V for every x.
        const at::Tensor expected = at::matmul(at::linalg_pinv(in_use.t()), old.at(at + dropped + ".weight").t()).t();
        CHECK((made - expected).abs().max().item<double>() < 1e-9 * expected.abs().max().item<double>());
        CHECK((at::matmul(made, in_use) - old.at(at + dropped + ".weight")).abs().max().item<double>() < 1e-10);
      }
    }
  }
}

TEST_CASE("cache_keys_only: every number is as good as those that it is made of, whatever the sizes of the keys") {
  const Architecture a = cached(R"({"qk_norm": {"kind": "rms"}})");
  Tensors old = generic_tensors(a, 2);
  at::Tensor &key = old.at("blocks.0.attention.key.weight"), &value = old.at("blocks.0.attention.value.weight");
  key = key * at::pow(10.0, at::linspace(-2, 2, d, at::kDouble)).unsqueeze(1);
  key = key * at::pow(10.0, at::linspace(3, -3, d, at::kDouble));
  value = value * at::pow(10.0, at::linspace(3, -3, d, at::kDouble));
  const PassStep step = cache_step({a, as_weights(old)}, "k");
  REQUIRE(step.proposal.applies);
  const at::Tensor made = step.proposal.after.weights.at("blocks.0.attention.value_from_key.weight").load();
  const at::Tensor off = (at::matmul(made, key) - value).abs() / at::matmul(made.abs(), key.abs());
  CHECK(off.max().item<double>() < 4 * 0x1p-53);
}

TEST_CASE("cache_keys_only: the same function, token by token, from half of the cache or less") {
  struct Case {
    std::string name, attention, keep;
    int64_t remembered;  // numbers of one layer, for a token
    int64_t grown = 0;   // parameters of one layer
  };
  const int64_t wide = 12;  // 4 heads of 3
  for (const Case& c : std::vector<Case>{
           {"keys", "{}", "k", d},
           {"values", "{}", "v", d},
           {"inputs", "{}", "x", d},
           {"best", "{}", "best", d},
           {"biases, keys", "{" + with_biases + "}", "k", d},
           {"biases, values", "{" + with_biases + "}", "v", d},
           {"rope", R"({"rope": {}, )" + with_biases + "}", "k", d},
           {"rope, values", R"({"rope": {}, )" + with_biases + "}", "v", d},
           {"qk-norm and rope", R"({"rope": {}, "qk_norm": {"kind": "rms"}, )" + with_biases + "}", "k", d},
           {"qk-norm, values", R"({"qk_norm": {"kind": "layer"}, )" + with_biases + "}", "v", d},
           {"qk-norm, inputs", R"({"rope": {}, "qk_norm": {"kind": "rms"}})", "x", d},
           {"softcap, alibi", R"({"softcap": 2, "alibi": {}})", "k", d},
           {"gate", R"({"gate": "position", )" + with_biases + "}", "k", d},
           {"query is key", R"({"query": "key", "bias": {"key": true}})", "k", d},
           {"identity key: nothing is inverted", R"({"key": "identity", "bias": {"key": true}})", "k", d},
           {"identity value", R"({"value": "identity", "bias": {"value": true}})", "v", d},
           {"identity output", R"({"output": "identity"})", "k", d},
           {"more heads than width", R"({"head_width": 3})", "k", wide, wide * (wide - d)},
           {"more heads than width, values", R"({"head_width": 3})", "v", wide, wide * (wide - d)},
           {"more heads than width, inputs", R"({"head_width": 3})", "best", d},
           {"grouped heads, inputs", R"({"head_width": 3, "kv_heads": 2})", "best", d},
           {"shrunk pairs, inputs", R"({"pairs": {"value_output": "shrunk"}})", "best", d},
       }) {
    INFO(c.name);
    const Architecture a = cached(c.attention);
    const Model before{a, as_weights(generic_tensors(a))};
    const PassStep step = cache_step(before, c.keep);
    REQUIRE(step.proposal.applies);
    const double allowed = 1e-13 * std::max(10.0, step.proposal.roundings);
    CHECK(difference(before, step.proposal.after) < allowed);
    CHECK(decoded_difference(before, step.proposal.after) < allowed);
    CHECK(cache_elements_per_token(step.proposal.after.architecture) == L * c.remembered);
    CHECK(step.saved_parameters == -L * c.grown);
    CHECK(step.proposal.notes.at(0).starts_with("for decoding: a token's cache goes from "));
    CHECK((step.proposal.roundings == 0) == (c.keep == "x" || c.name.starts_with("identity key") ||
                                             c.name.starts_with("identity value") || c.name.ends_with("inputs")));
  }
}

TEST_CASE("cache_keys_only: says what of the cache and of the file changes") {
  const Architecture a = cached(R"({"head_width": 3})");
  const Model before{a, as_weights(generic_tensors(a))};
  const PassStep step = cache_step(before, "k");
  REQUIRE(step.proposal.notes.size() == 2);
  CHECK(step.proposal.notes[0] ==
        "for decoding: a token's cache goes from 48 to 24 numbers (384 to 192 bytes in float64)");
  CHECK(step.proposal.notes[1] == "the matrices in place of the dropped ones are larger: 96 parameters more");
  const PassStep inputs = cache_step({.architecture = a}, "x");
  CHECK(inputs.proposal.notes.at(0) == "for decoding: a token's cache goes from 48 to 16 numbers");
}

TEST_CASE("cache_keys_only: what it refuses, where and why") {
  struct Refusal {
    std::string attention, keep, found;
    bool remedied;
  };
  for (const Refusal& r : std::vector<Refusal>{
           {R"({"kv_heads": 2})", "k", "4 and 8", true},
           {R"({"kv_heads": 2})", "x", "8 and 2 * 4: inputs are not fewer", true},
           {R"({"kv_heads": 2})", "best", "4 and 8", true},
           {R"({"query": "key"})", "v", "the query is the key, which has to stay", true},
           {R"({"value": "identity"})", "k", "there is none to replace", true},
           {R"({"key": "identity"})", "v", "there is none to replace", true},
           {R"({"pairs": {"query_key": "shrunk"}})", "k", "it is shrunk", true},
           {R"({"scores": "collapsed"})", "k", "collapsed heads remember their input", false},
           {R"({"cache": "x"})", "k", "it is slim already", false},
           {R"({"cache": "k"})", "best", "it is slim already", false},
           {R"({"mask": "full"})", "best", "every token sees every other, and nothing is cached", false},
       }) {
    INFO(r.attention, " ", r.keep);
    const PassStep step = cache_step({.architecture = cached(r.attention)}, r.keep);
    CHECK_FALSE(step.proposal.applies);
    CHECK(step.proposal.preconditions[0].where == "blocks.0.attention.cache");
    CHECK(step.proposal.preconditions[0].found == r.found);
    CHECK(step.proposal.preconditions[0].remedy.empty() != r.remedied);
  }
}

// QK-norm leaves the key no gauge: its condition number is what the test says.
TEST_CASE("cache_keys_only: from condition number 1e2 to 1e12 within what is predicted, or refused") {
  const Architecture a = cached(R"({"qk_norm": {"kind": "rms"}})");
  const Inputs inputs = random_inputs(a, 4, 12);
  for (const double condition : {1e2, 1e4, 1e6, 1e8, 1e10, 1e12}) {
    INFO("condition ", condition);
    at::manual_seed(5);
    Tensors tensors = generic_tensors(a);
    for (int64_t n = 0; n < L; ++n) {
      tensors[fmt::format("blocks.{}.attention.key.weight", n)] = random_of_condition(condition);
    }
    const Model before{a, as_weights(tensors)};
    const PassStep step = cache_step(before, "k");
    CHECK(step.proposal.applies == (condition < 1e9));
    if (!step.proposal.applies) {
      const Precondition& refused = step.proposal.preconditions.at(0);
      CHECK(refused.where == "blocks.0.attention.key");
      CHECK(refused.measured.value_or(0) == doctest::Approx(condition).epsilon(0.01));
      CHECK(refused.remedy == "keep=x, which inverts nothing");
      continue;
    }
    CHECK(step.proposal.roundings == doctest::Approx(std::sqrt(L) * condition).epsilon(1e-3));
    const at::Tensor truth = answer(before, inputs);
    for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
      const double error = relative_error(answer(in_type(step.proposal.after, dtype), inputs), truth);
      CHECK(error < 2 * predicted_error(step.proposal.roundings, dtype));
    }
    // The best choice leaves bad keys alone: the values are good.
    const PassStep best = cache_step(before, "best");
    CHECK(is<FromValue>(best.proposal.after.architecture.blocks[0].attention.key));
    CHECK(difference(before, best.proposal.after) < 1e-10);
  }
}

TEST_CASE("cache_keys_only: where keys and values are both bad, the best are inputs, which lose nothing") {
  const Architecture a = cached(R"({"qk_norm": {"kind": "rms"}, "output": "identity"})");  // no gauges
  at::manual_seed(5);
  Tensors tensors = generic_tensors(a);
  for (int64_t n = 0; n < L; ++n) {
    tensors[fmt::format("blocks.{}.attention.key.weight", n)] = random_of_condition(1e12);
    tensors[fmt::format("blocks.{}.attention.value.weight", n)] = random_of_condition(1e11);
  }
  const Model before{a, as_weights(tensors)};
  const PassStep best = cache_step(before, "best");
  CHECK(best.proposal.after.architecture.blocks[1].attention.remembered == Remembered::inputs);
  CHECK(best.proposal.roundings == 0);
  CHECK(decoded_difference(before, best.proposal.after) < 1e-12);
}

TEST_CASE("cache_keys_only: the gauge of the heads is taken where it helps") {
  const Architecture a = cached("{" + with_biases + "}");
  Tensors tensors = generic_tensors(a, 4);
  at::Tensor& key = tensors["blocks.0.attention.key.weight"];
  key = key * at::tensor({1e0, 1e-5}, at::kDouble).repeat({4}).unsqueeze(1);
  const Model before{a, as_weights(tensors)};
  const PassStep step = cache_step(before, "k");
  REQUIRE(step.proposal.applies);
  const Conditioning& first = step.proposal.conditioning.at(0);
  CHECK(first.chosen);
  CHECK(first.stored > 1e4);
  CHECK(first.gauged < 1e3);
  CHECK(decoded_difference(before, step.proposal.after) < 1e-12 * step.proposal.roundings);
}

TEST_CASE("cache_keys_only: best in a narrow type is the input, which loses nothing") {
  const Architecture a = cached();
  const Model model = in_type({a, as_weights(generic_tensors(a))}, Dtype::bf16);
  const PassStep best = cache_step(model, "best");
  CHECK(best.proposal.after.architecture.blocks[0].attention.remembered == Remembered::inputs);
  CHECK(best.proposal.notes.back() == "keys and values are recomputed from cached inputs at every step");
}

}  // namespace pare::test
