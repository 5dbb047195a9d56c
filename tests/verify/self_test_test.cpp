// Disturbed tensors: that they are moved as said, that one pass says what whole disturbed models say, and what a check
// that sees, sees little or sees nothing comes to.
#include "pare/verify/self_test.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "pare/support/error.h"
#include "tests/verify/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

const Arithmetic in_float64{at::kDouble, at::kCPU};

// One of each thing that a tensor can stand in: tables, factors, types, tied heads, blocks that several layers run, a
// first layer that is looked up, poolers, transforms, two heads, images.
const std::vector<std::string> architectures = {
    R"({"width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned"}, "head": {"tied": true},
        "blocks": [{"repeat": 3, "attention": {"heads": 2, "head_width": 6, "norm": {"kind": "layer", "bias": true},
                    "bias": {"query": true, "key": true, "value": true, "output": true}},
                    "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}, "bias": {"up": true}}}],
        "final_norm": {"kind": "layer"}})",
    R"({"width": 12, "vocab": 23, "context": 32, "layers": [0, 1, 0, 0], "head": {"tied": false, "bias": true},
        "blocks": [{"repeat": 2, "wiring": "parallel", "attention": {"heads": 4, "kv_heads": 2, "head_width": 6,
                    "rope": {}, "norm": {"kind": "rms", "offset": 1.0}},
                    "mlp": {"width": 20, "activation": "silu", "gated": true}}]})",
    R"({"width": 12, "vocab": 23, "context": 32, "first_layer": "table", "head": {"tied": false},
        "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 6, "rope": {}, "norm": {"kind": "rms"}},
                    "mlp": {"width": 20, "activation": "gelu"}}]})",
    R"({"task": "encoder", "width": 12, "vocab": 23, "context": 32,
        "embedding": {"position": "learned", "types": 2, "factor": 8, "norm": {"kind": "layer", "bias": true}},
        "head": {"pool": "first", "transform": {"activation": "tanh"}},
        "blocks": [{"repeat": 2, "attention": {"mask": "full", "heads": 2, "head_width": 6,
                    "norm": {"kind": "layer", "place": "post"}},
                    "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "layer", "place": "post"}}}]})",
    R"({"task": "classifier", "width": 12, "context": 5, "final_norm": {"kind": "layer"},
        "embedding": {"position": "learned", "class_token": true, "patch": {"size": 2, "image": 4}},
        "head": {"tied": false, "bias": true, "classes": 7, "pool": "first"},
        "blocks": [{"repeat": 2, "attention": {"mask": "full", "heads": 2, "head_width": 6, "norm": {"kind": "layer"}},
                    "mlp": {"width": 20, "activation": "gelu"}}]})",
};

// One sequence; of an encoder its last tokens are padding.
Inputs sequence_for(const Architecture& a) {
  if (a.embedding.patch) {
    return {.pixels = at::randn({1, 3, 4, 4}, at::kDouble)};
  }
  Inputs inputs{.ids = at::randint(a.vocab, {1, 9}, at::kLong)};
  if (a.task == Task::encoder) {
    inputs.mask = (at::arange(9) < 7).unsqueeze(0);
    inputs.types = (at::arange(9) % 2).unsqueeze(0);
  }
  return inputs;
}

std::vector<Disturbance> disturbances_of(const Architecture& a) {
  std::vector<Disturbance> all;
  for (const TensorSpec& spec : tensor_table(a)) {
    all.push_back({spec, {.seed = 100 + all.size()}});
  }
  return all;
}

Model disturbed(const Model& model, const Disturbance& disturbance, double size) {
  Model changed = model;
  Weight& weight = changed.weights.at(disturbance.tensor.name);
  weight = moved(weight, disturbance.movement, size);
  return changed;
}

Answer answer_to(const Model& model, const Inputs& inputs) {
  return answer_of({model, in_float64}, ask(model.architecture, {&inputs, 1}, at::kCPU), [] {});
}

bool is_near(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || at::allclose(a, b, 1e-12, 1e-12));
}

// A model beside itself, and a sequence that it was asked.
struct Pair {
  Model model;
  ComparedModel runner{model, in_float64};
  Sample sample;

  explicit Pair(const Architecture& a, const Tensors& tensors) : model{a, as_weights(tensors)} {
    const Inputs inputs = sequence_for(a);
    sample = {.inputs = inputs, .truth = answer_to(model, inputs), .targets = ask(a, {&inputs, 1}, at::kCPU).targets};
  }
  explicit Pair(const Architecture& a) : Pair(a, generic_tensors(a)) {}

  std::vector<SelfTest> test(double smallest, uint64_t seed,
                             const std::function<bool(const Comparison&)>& caught) const {
    return test_check(runner, runner, sample, smallest, seed, caught);
  }
};

std::function<bool(const Comparison&)> above(double error) {
  return [error](const Comparison& c) {
    return largest(c.rows.error) > error || (c.pooled && largest(c.pooled->error) > error);
  };
}

}  // namespace

TEST_CASE("every element is moved by the fraction of itself, in slices as in the whole") {
  at::manual_seed(7);
  const at::Tensor tensor = at::randn({40, 30, 2}, at::kDouble);
  const Weight weight = Weight::leaf(
      "w", Dtype::f64, {40, 30, 2}, [tensor] { return tensor; },
      [tensor](int64_t begin, int64_t count) { return tensor.narrow(0, begin, count); });
  const Weight changed = moved(weight, {.seed = 5}, 0.25);
  const at::Tensor ratio = changed.load() / tensor - 1;
  CHECK(at::allclose(ratio.abs(), at::full_like(tensor, 0.25), 1e-9));
  const double up = (ratio > 0).to(at::kDouble).mean().item<double>();
  CHECK(up > 0.3);
  CHECK(up < 0.7);
  CHECK(at::equal(changed.load_rows(7, 11), changed.load().narrow(0, 7, 11)));
  CHECK_FALSE(at::equal(changed.load(), moved(weight, {.seed = 6}, 0.25).load()));
  const at::Tensor from_zero = moved(weight, {.seed = 5, .from_zero = 0.5}, 0.25).load() - tensor;
  CHECK(at::allclose(from_zero.abs(), at::full_like(tensor, 0.125), 1e-9));
}

TEST_CASE("one pass says of every tensor what whole models say in which it was moved") {
  at::manual_seed(3);
  const std::vector<double> sizes = {1e-3, 0.1, 1};
  for (const std::string& text : architectures) {
    CAPTURE(text);
    const Architecture a = parse(text);
    const Model model{a, as_weights(generic_tensors(a))};
    const Inputs inputs = sequence_for(a);
    const std::vector<Disturbance> disturbances = disturbances_of(a);
    const std::vector<std::vector<Answer>> found = disturbed_answers({model, in_float64}, inputs, disturbances, sizes);
    REQUIRE(found.size() == disturbances.size());
    const Answer clean = answer_to(model, inputs);
    size_t silent = 0;
    for (size_t i = 0; i < disturbances.size(); ++i) {
      CAPTURE(disturbances[i].tensor.name);
      REQUIRE(found[i].size() == sizes.size());
      for (size_t n = 0; n < sizes.size(); ++n) {
        const Answer wanted = answer_to(disturbed(model, disturbances[i], sizes[n]), inputs);
        CHECK(is_near(found[i][n].rows, wanted.rows));
        CHECK(is_near(found[i][n].pooled, wanted.pooled));
      }
      silent += is_near(found[i].back().rows, clean.rows) && is_near(found[i].back().pooled, clean.pooled) ? 1 : 0;
    }
    // The head's matrix and bias, which are no part of it, and key biases, which a softmax does not see.
    CHECK(silent <= 5);
  }
}

TEST_CASE("weights are read once, however many sizes there are, but for blocks that are disturbed") {
  const Architecture a = parse(architectures.front());
  Loads loads;
  const Model model{a, counted(as_weights(generic_tensors(a)), loads)};
  std::vector<Disturbance> some;
  for (const Disturbance& disturbance : disturbances_of(a)) {
    if (disturbance.tensor.id.module.block == 1 || disturbance.tensor.name == "embed.position.weight") {
      some.push_back(disturbance);
    }
  }
  const std::vector<double> sizes(20, 0.5);
  disturbed_answers({model, in_float64}, sequence_for(a), some, sizes);
  for (const TensorSpec& spec : tensor_table(a)) {
    CAPTURE(spec.name);
    CHECK(loads[spec.name] >= 1);
    CHECK(loads[spec.name] <= (spec.id.module.block == 1 ? 3 : spec.name == "embed.position.weight" ? 2 : 1));
  }
}

TEST_CASE("what is caught and what is missed is what whole disturbed models show") {
  at::manual_seed(3);
  std::set<std::string> seen;
  for (const std::string& text : architectures) {
    CAPTURE(text);
    const Architecture a = parse(text);
    const Pair pair(a);
    for (const uint64_t seed : {1, 2, 3}) {
      const std::vector<SelfTest> tests = pair.test(1e-8, seed, above(1e-5));
      const bool has_ends = a.task != Task::encoder || a.head.transform || a.final_norm;
      REQUIRE(tests.size() == (has_ends ? 6 : 5));
      for (const SelfTest& test : tests) {
        CAPTURE(test.tensor);
        seen.insert(test.tensor);
        if (test.tensor.ends_with("key.bias")) {  // which adds the same to all scores of a query
          CHECK(test.smallest_caught == 0);
          CHECK(test.largest_missed == 1);
          continue;
        }
        CHECK(test.smallest_caught > 1e-8);
        CHECK(test.smallest_caught > 1.9 * test.largest_missed);
        CHECK(test.smallest_caught < 8.1 * test.largest_missed);
        // Linear where it is small: ten times as far is caught whatever the signs are, a hundredth is not.
        const TensorSpec spec = tensor_table(a).at(test.tensor);
        const auto error = [&](double size) {
          const Model changed = disturbed(pair.model, {spec, {.seed = 77}}, size);
          const ComparedModel runner{changed, in_float64};
          const Answer answer = answer_to(changed, pair.sample.inputs);
          const Said said{runner, answer};
          return compare({pair.runner, pair.sample.truth}, {&said, 1}, pair.sample.targets, 1).front();
        };
        CHECK(above(1e-5)(error(10 * test.smallest_caught)));
        CHECK_FALSE(above(1e-5)(error(test.largest_missed / 100)));
      }
    }
  }
  CHECK(seen.size() > 25);  // other seeds, other tensors
}

TEST_CASE("tensors come from all over the model, of different kinds, and the same for a seed") {
  at::manual_seed(3);
  const Architecture a = parse(architectures.front());
  const Pair pair(a);
  const TensorTable table = tensor_table(a);
  std::set<std::string> everything;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const std::vector<SelfTest> tests = pair.test(0.1, seed, above(1e-5));
    std::set<std::tuple<Sublayer, Slot, TensorKind>> kinds;
    std::vector<int> places;
    for (const SelfTest& test : tests) {
      const TensorId id = table.at(test.tensor).id;
      kinds.insert({id.module.sublayer, id.module.slot, id.kind});
      places.push_back(id.module.block ? 1 : id.module.sublayer == Sublayer::embedding ? 0 : 2);
      everything.insert(test.tensor);
    }
    CHECK(places == std::vector<int>{0, 1, 1, 1, 1, 2});
    CHECK(kinds.size() == 6);
    const std::vector<SelfTest> again = pair.test(0.1, seed, above(1e-5));
    CHECK(std::equal(tests.begin(), tests.end(), again.begin(), again.end(),
                     [](const SelfTest& x, const SelfTest& y) { return x.tensor == y.tensor; }));
  }
  CHECK(everything.size() == table.size());
}

TEST_CASE("a check that catches everything, and one that catches nothing") {
  at::manual_seed(3);
  const Pair pair(rich_architecture());
  for (const SelfTest& test : pair.test(1e-3, 1, [](const Comparison&) { return true; })) {
    CHECK(test.smallest_caught == 1e-3);
    CHECK(test.largest_missed == 0);
  }
  std::vector<SelfTest> tests = pair.test(1e-3, 1, [](const Comparison&) { return false; });
  for (const SelfTest& test : tests) {
    CHECK(test.smallest_caught == 0);
    CHECK(test.largest_missed == 1);
  }
  const std::string message = message_of<VerificationFailed>([&] { check_sees(tests, pair.runner, pair.sample, 1); });
  CHECK(contains(message, "the check sees nothing"));
  CHECK(contains(message, "embed.token.weight"));
  tests.back().smallest_caught = 1;
  CHECK_NOTHROW(check_sees(tests, pair.runner, pair.sample, 1));
}

TEST_CASE("tensors of zeros are moved too, and a model that always says the same has nothing to be caught in") {
  at::manual_seed(3);
  const Architecture a = parse(architectures.front());
  Tensors tensors = generic_tensors(a);
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with(".bias")) {
      tensor.zero_();
    }
  }
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (const SelfTest& test : Pair(a, tensors).test(1e-6, seed, above(1e-5))) {
      CAPTURE(test.tensor);
      CHECK((test.smallest_caught > 0) != test.tensor.ends_with("key.bias"));
    }
  }
  // Behind a norm with gains of zero every row is the same, whatever came before.
  for (auto& [name, tensor] : tensors) {
    if (name == "norm.weight") {
      tensor.zero_();
    }
  }
  const Pair constant(a, tensors);
  const std::vector<SelfTest> tests = constant.test(1e-3, 1, [](const Comparison&) { return false; });
  CHECK_NOTHROW(check_sees(tests, constant.runner, constant.sample, 1));
}
