// Mistakes that rewrites and translations make. Each must be caught, in both types that models are rewritten in.

#include <doctest/doctest.h>

#include <functional>

#include "tests/verify/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

struct Mistake {
  std::string what;
  std::string tap;  // where the models part
  std::function<void(Architecture&, Tensors&)> make;
};

const std::vector<Mistake> mistakes = {
    {"two heads of W_O swapped", "blocks.1.attention.probabilities",
     [](Architecture&, Tensors& t) {
       at::Tensor& output = t.at("blocks.0.attention.output.weight");
       output = at::cat({output.narrow(1, 6, 6), output.narrow(1, 0, 6)}, 1);
     }},
    {"a forgotten bias", "blocks.1.attention.probabilities",
     [](Architecture& a, Tensors& t) {
       a.blocks[0].attention.bias.output = false;
       t.erase("blocks.0.attention.output.bias");
     }},
    {"a bias of zeros in the last block", "logits",
     [](Architecture&, Tensors& t) { t.at("blocks.1.attention.output.bias") = at::zeros({12}, at::kDouble); }},
    {"heads of the first block in another order, and a bias of zeros in the last", "logits",
     [](Architecture&, Tensors& t) {
       for (const char* name : {"query.weight", "key.weight", "value.weight", "value.bias"}) {
         at::Tensor& rows = t.at(std::string("blocks.0.attention.") + name);
         rows = at::cat({rows.narrow(0, 6, 6), rows.narrow(0, 0, 6)});
       }
       at::Tensor& output = t.at("blocks.0.attention.output.weight");
       output = at::cat({output.narrow(1, 6, 6), output.narrow(1, 0, 6)}, 1);
       t.at("blocks.1.attention.output.bias") = at::zeros({12}, at::kDouble);
     }},
    {"a transposed square matrix", "blocks.1.attention.probabilities",
     [](Architecture&, Tensors& t) {
       t.at("blocks.1.attention.query.weight") = t.at("blocks.1.attention.query.weight").t().contiguous();
     }},
    {"gains of one instead of 1 + w", "blocks.0.attention.probabilities",
     [](Architecture&, Tensors& t) { t.at("blocks.0.attention.norm.weight") = at::zeros({12}, at::kDouble); }},
    {"gains of w instead of 1 + w", "blocks.1.attention.probabilities",
     [](Architecture& a, Tensors&) { a.blocks[0].mlp->norm->offset = 0; }},
};

}  // namespace

TEST_CASE("negative controls: every mistake is caught, and where it is first seen") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    for (const Mistake& mistake : mistakes) {
      CAPTURE(mistake.what);
      CAPTURE(at::toString(dtype));
      Architecture wrong = rich_architecture();
      Tensors tensors = generic_tensors(wrong);
      const ModelFolder reference = model_of(wrong, tensors, dtype);
      mistake.make(wrong, tensors);
      const Verification v = verify_drawn(reference, model_of(wrong, tensors, dtype));
      CHECK(v.verdict == Verdict::different);
      CHECK(v.self_tests.empty());
      REQUIRE(v.first_divergence);
      CHECK(v.first_divergence->tap == mistake.tap);
      CHECK(v.first_divergence->difference > 1e-3);
    }
  }
}

TEST_CASE("negative control: one element of any tensor changed by 1 %") {
  const Architecture a = rich_architecture();
  const Tensors tensors = generic_tensors(a);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const ModelFolder reference = model_of(a, tensors, dtype);
    for (const auto& [name, tensor] : tensors) {
      CAPTURE(name);
      Tensors changed = tensors;
      changed[name] = tensor.clone();
      changed[name].flatten()[tensor.numel() / 2].mul_(1.01);
      CHECK(verify_drawn(reference, model_of(a, changed, dtype)).verdict == Verdict::different);
    }
  }
}
