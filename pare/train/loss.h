#pragma once
// Cross-entropy without the logits of all tokens: rows of tokens are taken a few at a time, and each piece gives its
// part of the loss and of all gradients before the next one is computed. Exact, with no product computed twice.

#include <ATen/core/Tensor.h>

#include <optional>

namespace pare {

// y = x W' + b, through a softcap where there is one: the end of any model that is trained.
struct LossHead {
  at::Tensor weight, bias;  // no bias where it is undefined
  std::optional<double> softcap;
};

// Where gradients are added to; undefined where nobody asks.
struct HeadGradients {
  at::Tensor weight, bias;
};

struct LossParts {
  at::Tensor sum;         // float64 scalar, over all targets
  at::Tensor plain;       // the same of the cross-entropy alone, where the loss has other parts; else undefined
  at::Tensor right;       // int64 scalar: for how many targets the largest logit is theirs; only without gradients
  at::Tensor head_input;  // the gradient of the scaled sum; undefined without gradients
};

// `x` [rows, width], `targets` int64 [rows] with no no_target among them, `piece`: how many logits may exist at once.
// With gradients, they are those of `scale` times the sum.
LossParts cross_entropy(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece);
LossParts cross_entropy(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece,
                        double scale, const HeadGradients& gradients);

}  // namespace pare
