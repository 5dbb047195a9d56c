#pragma once
// Cross-entropy without the logits of all tokens: rows of tokens are taken a few at a time, and each piece gives its
// part of the loss and of all gradients before the next one is computed. Exact, with no product computed twice.

#include <ATen/core/Tensor.h>

#include <optional>

namespace pare {

// y = s (x W' + b), through a softcap where there is one: the end of any model that is trained.
struct LossHead {
  at::Tensor weight, bias;  // no bias where it is undefined
  std::optional<double> softcap;
  double scale = 1;
};

// Where gradients are added to; undefined where nobody asks.
struct HeadGradients {
  at::Tensor weight, bias;
};

// The head's product, a few rows at a time: forwards, and back to what it read and to its weights. Whatever is made of
// logits is made of these.
class HeadProduct {
 public:
  explicit HeadProduct(const LossHead& head);

  int64_t classes() const { return head_.weight.size(0); }
  // A GPU's matrix units want sides of round length, so there may be more columns than classes.
  int64_t columns() const { return weight_.size(0); }

  struct Scores {
    at::Tensor logits;  // [rows, columns]; -infinity where there is no class
    at::Tensor slope;   // of the softcap; undefined without one
  };
  Scores scores(const at::Tensor& x) const;

  // `wrong` [rows, columns]: the gradient of something by the logits before a softcap, in the type of `x`. That of
  // `scale` times it becomes `head_input` and is added to `gradients`, in their own type where the device can.
  void go_back(const at::Tensor& wrong, const at::Tensor& x, double scale, const at::Tensor& head_input,
               const HeadGradients& gradients) const;

 private:
  const LossHead& head_;
  at::Tensor weight_;
};

// softmax - 1 where a target is, of its logarithms, which it may overwrite. Near 1 a probability in a narrow type is no
// longer distinguished from 1: there the difference is computed in the wide type.
at::Tensor wrongness(at::Tensor logarithms, const at::Tensor& asked, const at::Tensor& right, at::ScalarType dtype);

struct LossParts {
  at::Tensor sum;         // float64 scalar, over all targets
  at::Tensor plain;       // the same of the cross-entropy alone, where the loss has other parts; else undefined
  at::Tensor right;       // int64 scalar: for how many targets the largest logit is theirs; only without gradients
  at::Tensor head_input;  // the gradient of the scaled sum; undefined without gradients
};

// Another model to learn from: beside the targets, what it thinks of every other answer.
//   loss = (1 - w) CE(p, target) + w τ² KL(q_τ ‖ p_τ),   q_τ, p_τ: softmax of the teacher's and the own logits over τ
struct Taught {
  at::Tensor x;  // what the teacher's head reads, [rows, its width]
  const LossHead& head;
  double weight = 0.5, temperature = 1;
};

// `x` [rows, width], `targets` int64 [rows] with no no_target among them, `piece`: how many logits may exist at once.
// With gradients, they are those of `scale` times the sum.
LossParts cross_entropy(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece);
LossParts cross_entropy(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece,
                        double scale, const HeadGradients& gradients, const Taught* teacher = nullptr);

}  // namespace pare
