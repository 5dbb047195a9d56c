// Shaped attention in proofs: shapes follow their heads, and a value bias is no output bias there.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "tests/proof/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

const char* const shaped_model =
    R"({"width": 16, "vocab": 40, "context": 9, "blocks": [{"repeat": 2,
        "attention": {"heads": 4, "head_width": 4, "shaped": true, "bias": {"value": true, "output": true}},
        "mlp": {"width": 40, "activation": "gelu", "norm": {"kind": "rms"}}}]})";

const std::string first = "blocks.0.attention.";

at::Tensor heads_in_order(const at::Tensor& tensor, int64_t axis, const at::Tensor& order) {
  const int64_t entries = tensor.size(axis) / order.numel();
  return tensor.index_select(axis, (order.unsqueeze(1) * entries + at::arange(entries, at::kLong)).flatten());
}

}  // namespace

TEST_CASE("shaped: heads change places with their shapes, and not without") {
  for (const bool with_shapes : {true, false}) {
    CAPTURE(with_shapes);
    Pair pair = pair_of(parse(shaped_model));
    const at::Tensor order = at::tensor({2, 0, 3, 1}, at::kLong);
    for (const char* name : {"query.weight", "key.weight", "value.weight", "value.bias", "shape.weight"}) {
      if (with_shapes || std::string(name) != "shape.weight") {
        pair.tb[first + name] = heads_in_order(pair.tb.at(first + name), 0, order);
      }
    }
    pair.tb[first + "output.weight"] = heads_in_order(pair.tb.at(first + "output.weight"), 1, order);
    const Proof proof = proof_of(pair);
    CHECK_MESSAGE(proof.complete == with_shapes, why(proof));
  }
}

TEST_CASE("shaped: a value bias that is moved to the output is another function, and one whose shape is another too") {
  Pair pair = pair_of(parse(shaped_model));
  CHECK(proof_of(pair).complete);
  const at::Tensor bias = pair.tb.at(first + "value.bias");
  pair.tb[first + "output.bias"] =
      pair.tb.at(first + "output.bias") + at::mv(pair.tb.at(first + "output.weight"), bias);
  pair.tb[first + "value.bias"] = at::zeros_like(bias);
  CHECK_FALSE(proof_of(pair).complete);

  Pair other = pair_of(parse(shaped_model));
  other.tb[first + "shape.weight"] = other.tb.at(first + "shape.weight").clone();
  other.tb[first + "shape.weight"][1][2].mul_(1 + 1e-12);
  CHECK_FALSE(proof_of(other).complete);
}

TEST_CASE("shaped: attention that is not is a difference by name") {
  Pair pair = pair_of(parse(shaped_model));
  for (Block& block : pair.b.blocks) {
    block.attention.shaped = false;
  }
  for (const char* block : {"blocks.0.", "blocks.1."}) {
    pair.tb.erase(std::string(block) + "attention.shape.weight");
  }
  const Proof proof = proof_of(pair);
  CHECK_FALSE(proof.complete);
  CHECK(why(proof).find("shaped: true in the reference, false in the candidate") != std::string::npos);
}
