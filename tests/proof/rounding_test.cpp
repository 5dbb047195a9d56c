// Where nothing was changed but how numbers are stored, the prover allows one rounding of what was rounded, and no
// more.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "tests/proof/helpers.h"

using namespace pare;
using namespace pare::test;

// Rounded correctly there is one number for each; the one beside it is another, in one place or in all.
TEST_CASE("where there is no other basis, nobody chooses how to round") {
  const auto bits_of = [](at::ScalarType dtype) {
    return dtype == at::kDouble ? at::kLong : dtype == at::kFloat ? at::kInt : at::kShort;
  };
  for (const Architecture& architecture : {rich_architecture(), parse(one_stream)}) {
    for (const at::ScalarType dtype : every_type) {
      CAPTURE(std::string(at::toString(dtype)));
      const Tensors exact = generic_tensors(architecture, 1), right = rounded(exact, dtype);
      const auto proof_with = [&](const Tensors& candidate) {
        return prove({architecture, as_weights(exact)}, {architecture, as_weights(candidate)}, at::kCPU);
      };
      const Proof close = proof_with(right);
      CHECK_MESSAGE(close.complete, why(close));
      for (const Relation& relation : close.relations) {
        CHECK(relation.residual <= 1 + 1e-6);
        CHECK(relation.how == (dtype == at::kDouble ? How::same_numbers : How::same_up_to_rounding));
      }
      for (const auto& [name, tensor] : exact) {
        CAPTURE(name);
        // Away from what was rounded: between one rounding and two.
        const at::Tensor outwards = at::where(right.at(name).to(at::kDouble).abs() >= tensor.abs(), 1, -1);
        const at::Tensor next = (right.at(name).view(bits_of(dtype)) + outwards).to(bits_of(dtype)).view(dtype);
        Tensors one = right, all = right;
        all[name] = next;
        one[name] = right.at(name).clone();
        one[name].flatten()[tensor.numel() / 2] = next.flatten()[tensor.numel() / 2];
        const bool dropped = name.ends_with("attention.key.bias");  // softmax may ignore it
        CHECK((dropped || proof_with(one).unexplained.contains(name)));
        CHECK((dropped || proof_with(all).unexplained.contains(name)));
      }
    }
  }
}

TEST_CASE("what both sides hold alike was not rounded, in however narrow a type") {
  SUBCASE("a narrow gain is no excuse for the head behind it") {
    Pair pair = pair_of(rich_architecture());
    pair.ta["norm.weight"] = pair.tb["norm.weight"] = pair.ta.at("norm.weight").to(at::kBFloat16);
    pair.tb["head.weight"] = pair.ta.at("head.weight") * (1 + 1e-3);
    const Proof proof = prove({pair.a, as_weights(pair.ta)}, {pair.b, as_weights(pair.tb)}, at::kCPU);
    CHECK(proof.unexplained == std::set<std::string>{"head.weight"});
  }
  SUBCASE("nor a gain that stays beside one that is folded") {
    Pair pair = pair_of(rich_architecture());
    for (Tensors* tensors : {&pair.ta, &pair.tb}) {
      (*tensors)["norm.weight"] = at::zeros({12}, at::kBFloat16);  // one is added to it
    }
    pair.ta["norm.weight"][3] = 0.5;
    pair.tb["head.weight"] = pair.ta.at("head.weight").clone();
    pair.tb["head.weight"].select(1, 3).mul_(1.5);
    const auto proved = [&pair] {
      return prove({pair.a, as_weights(pair.ta)}, {pair.b, as_weights(pair.tb)}, at::kCPU);
    };
    CHECK_MESSAGE(proved().complete, why(proved()));
    pair.tb["head.weight"].mul_(1 + 1e-3);
    CHECK_FALSE(proved().complete);
  }
  SUBCASE("nor a narrow output matrix for a bias") {
    Pair pair = pair_of(rich_architecture());
    const std::string attention = "blocks.0.attention.";
    at::Tensor& matrix = pair.ta[attention + "output.weight"];
    matrix = pair.tb[attention + "output.weight"] = matrix.to(at::kBFloat16);
    const at::Tensor value = pair.ta.at(attention + "value.bias");
    pair.ta[attention + "value.bias"] = at::zeros_like(value);
    const at::Tensor bias = pair.ta.at(attention + "output.bias") - at::mv(matrix.to(at::kDouble), value);
    const auto proved = [&](double factor) {
      pair.tb[attention + "output.bias"] = bias * factor;
      return prove({pair.a, as_weights(pair.ta)}, {pair.b, as_weights(pair.tb)}, at::kCPU).complete;
    };
    CHECK(proved(1));
    CHECK_FALSE(proved(1 + 1e-4));
  }
}
