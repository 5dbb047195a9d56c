// Cross-entropy in pieces is cross-entropy: the value and every gradient, whatever the pieces are.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/train/loss.h"

namespace pare::test {

namespace {

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

struct WholeLoss {
  at::Tensor sum, x, weight, bias;
};

// With all logits at once, and the gradients of autograd.
WholeLoss whole(const at::Tensor& x0, const LossHead& head, const at::Tensor& targets, double scale) {
  const at::Tensor x = x0.clone().requires_grad_(true), weight = head.weight.clone().requires_grad_(true);
  const at::Tensor bias = head.bias.defined() ? head.bias.clone().requires_grad_(true) : at::Tensor();
  at::Tensor logits = at::linear(x, weight, bias);
  if (head.softcap) {
    logits = *head.softcap * at::tanh(logits / *head.softcap);
  }
  const at::Tensor sum = -at::log_softmax(logits, -1).gather(1, targets.unsqueeze(1)).sum();
  (scale * sum).backward();
  return {sum.detach(), x.grad(), weight.grad(), bias.defined() ? bias.grad() : at::Tensor()};
}

}  // namespace

TEST_CASE("value and gradients are those of all logits at once") {
  at::manual_seed(3);
  const at::Tensor x = at::randn({13, 6}, at::kDouble), targets = at::randint(11, {13}, at::kLong);
  for (const bool with_bias : {false, true}) {
    for (const std::optional<double> cap : {std::optional<double>(), std::optional<double>(0.8)}) {
      LossHead head{.weight = at::randn({11, 6}, at::kDouble), .softcap = cap};
      if (with_bias) {
        head.bias = at::randn({11}, at::kDouble);
      }
      const WholeLoss expected = whole(x, head, targets, 0.3);
      for (const int64_t piece : {1, 30, 44, 1 << 20}) {  // rows one by one, in pieces that do not fit, at once
        CAPTURE(piece);
        const HeadGradients gradients{at::ones_like(head.weight),
                                      with_bias ? at::ones({11}, at::kDouble) : at::Tensor()};
        const LossParts parts = cross_entropy(x, head, targets, piece, 0.3, gradients);
        CHECK(largest_difference(parts.sum, expected.sum) < 1e-12);
        CHECK(largest_difference(parts.head_input, expected.x) < 1e-14);
        CHECK(largest_difference(gradients.weight - 1, expected.weight) < 1e-14);  // added, not overwritten
        if (with_bias) {
          CHECK(largest_difference(gradients.bias - 1, expected.bias) < 1e-14);
        }
        const LossParts measured = cross_entropy(x, head, targets, piece);
        CHECK(measured.sum.equal(parts.sum));
        CHECK(!measured.head_input.defined());
      }
    }
  }
}

TEST_CASE("how many targets are met is counted") {
  const at::Tensor x = at::eye(3, at::kDouble);
  const LossHead head{.weight = at::eye(3, at::kDouble)};
  CHECK(cross_entropy(x, head, at::tensor({0, 1, 2}, at::kLong), 4).right.item<int64_t>() == 3);
  CHECK(cross_entropy(x, head, at::tensor({0, 2, 1}, at::kLong), 4).right.item<int64_t>() == 1);
}

TEST_CASE("bfloat16 sums in float32, and its gradients go into wider ones") {
  at::manual_seed(5);
  const at::Tensor x = at::randn({40, 16}, at::kBFloat16), targets = at::randint(50, {40}, at::kLong);
  const LossHead head{.weight = at::randn({50, 16}, at::kBFloat16)};
  const HeadGradients gradients{at::zeros({50, 16}, at::kFloat), {}};
  const LossParts parts = cross_entropy(x, head, targets, 100, 1.0 / 40, gradients);
  const WholeLoss expected = whole(x.to(at::kDouble), {.weight = head.weight.to(at::kDouble)}, targets, 1.0 / 40);
  CHECK(largest_difference(parts.sum, expected.sum) < 0.01 * expected.sum.item<double>());
  CHECK(largest_difference(gradients.weight.to(at::kDouble), expected.weight) <
        0.02 * expected.weight.abs().max().item<double>());
  CHECK((parts.head_input.scalar_type() == at::kBFloat16));
}

}  // namespace pare::test
