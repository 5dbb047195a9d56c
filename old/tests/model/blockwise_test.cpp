// A run block by block is the same computation as a whole model's, bit for bit.
#include "pare/model/blockwise.h"

#include <doctest/doctest.h>

#include "pare/arch/head.h"
#include "pare/model/ends.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

std::vector<Features> run_all(BlockwiseRun& run) {
  while (run.done() < run.layers()) {
    run.run_layer();
  }
  return run.finish();
}

// Two batches, one of them padded on both sides.
std::vector<Inputs> two_batches(const Architecture& a) {
  std::vector<Inputs> inputs = {random_inputs(a, 2, 9, 1), random_inputs(a, 3, 5, 2)};
  if (!a.embedding.patch) {
    inputs[1].mask = at::ones({3, 5}, at::kBool);
    inputs[1].mask[0].narrow(0, 3, 2).fill_(false);
    inputs[1].mask[1].narrow(0, 0, 2).fill_(false);
  }
  return inputs;
}

void check_equal(const Architecture& a, at::ScalarType dtype) {
  const Weights weights = as_weights(generic_tensors(a));
  const Executor model({a, weights}, dtype);
  const std::vector<Inputs> inputs = two_batches(a);
  BlockwiseRun run({a, weights}, {dtype}, inputs);
  const std::vector<Features> found = run_all(run);
  REQUIRE(found.size() == inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Outputs whole = model.forward(inputs[i]);
    CHECK(at::equal(found[i].hidden, whole.hidden));
    CHECK(found[i].pooled.defined() == whole.pooled.defined());
    CHECK((!whole.pooled.defined() || at::equal(found[i].pooled, whole.pooled)));
    CHECK(found[i].sequence_logits.defined() == a.head.sequence.has_value());
    CHECK((!a.head.sequence || at::equal(found[i].sequence_logits, whole.sequence_logits)));
    CHECK(found[i].x.defined() == whole.logits.defined());
    if (!whole.logits.defined()) {
      continue;
    }
    const int64_t all = head_size(a), some = all / 3;
    CHECK(at::equal(logits(head_rows({a, weights}, {dtype}, 0, all), a, found[i].x), whole.logits));
    const at::Tensor slice = logits(head_rows({a, weights}, {dtype}, some, some), a, found[i].x);
    CHECK(at::allclose(slice, whole.logits.narrow(-1, some, some), 1e-12, 1e-12));
  }
}

}  // namespace

TEST_CASE("block by block is the same as whole, bit for bit") {
  for (const auto& [what, text] : every_architecture()) {
    CAPTURE(what);
    check_equal(parse(text), at::kDouble);
  }
  check_equal(parse(causal("")), at::kFloat);
}

TEST_CASE("a table is read in pieces where it can be, and only the rows in use are kept") {
  const Architecture a = parse(causal("", R"({"width": 20, "activation": "gelu"})", R"(, "head": {"tied": true})"));
  const Tensors tensors = generic_tensors(a);
  Weights weights = as_weights(tensors);
  const at::Tensor table = tensors.at("embed.token.weight");
  weights["embed.token.weight"] = Weight::leaf(
      "embed.token.weight", Dtype::f64, table.sizes().vec(), [] { return at::Tensor(); },  // would fail
      [table](int64_t begin, int64_t count) { return table.narrow(0, begin, count).clone(); });
  const std::vector<Inputs> inputs = two_batches(a);
  BlockwiseRun run({a, weights}, {}, inputs);
  const std::vector<Features> found = run_all(run);
  const Outputs whole = double_model(a, tensors).forward(inputs[0]);
  CHECK(at::equal(found[0].hidden, whole.hidden));
  CHECK(at::equal(logits(head_rows({a, weights}, {}, 0, 23), a, found[0].x), whole.logits));
}

TEST_CASE("each block is read once, and one that the next layer runs again is kept") {
  const Architecture a = parse(causal("", "null", R"(, "layers": [1, 0, 0, 1, 1])"));
  Loads loads;
  const Weights weights = counted(as_weights(generic_tensors(a)), loads);
  const std::vector<Inputs> inputs = two_batches(a);
  BlockwiseRun run({a, weights}, {}, inputs);
  CHECK(loads["blocks.1.attention.output.weight"] == 0);
  run_all(run);
  CHECK(loads["blocks.0.attention.output.weight"] == 1);
  CHECK(loads["blocks.1.attention.output.weight"] == 2);
  CHECK(loads["embed.token.weight"] == 1);
  CHECK(loads["head.weight"] == 0);
}

TEST_CASE("taps see what they see in a whole model") {
  const Architecture a = parse(causal(""));
  const Tensors tensors = generic_tensors(a);
  const Weights weights = as_weights(tensors);
  const std::vector<Inputs> inputs = {random_inputs(a, 1, 6)};
  Taps whole, streamed;
  whole.record("*");
  streamed.record("*");
  run(a, tensors, inputs[0], &whole);
  BlockwiseRun streamed_run({a, weights}, {}, inputs, &streamed);
  run_all(streamed_run);
  CHECK(whole.recorded().size() == streamed.recorded().size() + 1);  // the logits are nobody's yet
  for (const auto& [name, tensor] : streamed.recorded()) {
    CAPTURE(name);
    CHECK(at::equal(tensor, whole.recorded().at(name)));
  }
}
