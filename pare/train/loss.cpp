#include "pare/train/loss.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/support/error.h"

namespace pare {

namespace {

// += a' b, in the accumulator's own type.
void add_product(const at::Tensor& accumulator, const at::Tensor& a, const at::Tensor& b) {
  if (accumulator.scalar_type() == a.scalar_type()) {
    accumulator.addmm_(a.t(), b);
  } else {
    accumulator.add_(at::mm(a.t(), b));
  }
}

LossParts in_pieces(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece,
                    const double* scale, const HeadGradients& gradients) {
  const at::NoGradGuard no_grad;
  const bool narrow = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  PARE_CHECK(head.weight.defined() && x.dim() == 2 && targets.dim() == 1 && targets.size(0) == x.size(0),
             "rows and targets that do not belong together");
  const int64_t rows = x.size(0), step = std::max<int64_t>(1, piece / head.weight.size(0));
  LossParts parts{.sum = at::zeros({}, x.options().dtype(at::kDouble))};
  if (scale) {
    parts.head_input = at::empty_like(x);
  } else {
    parts.right = at::zeros({}, x.options().dtype(at::kLong));
  }
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const at::Tensor read = x.narrow(0, begin, count), asked = targets.narrow(0, begin, count).unsqueeze(1);
    at::Tensor logits = at::linear(read, head.weight, head.bias);
    if (narrow) {
      logits = logits.to(at::kFloat);
    }
    at::Tensor slope;
    if (head.softcap) {
      const at::Tensor bent = at::tanh(logits / *head.softcap);
      slope = 1 - bent.square();
      logits = *head.softcap * bent;
    }
    const at::Tensor total = at::logsumexp(logits, 1, true);
    parts.sum.add_((total - logits.gather(1, asked)).sum(at::kDouble));
    if (!scale) {
      parts.right.add_((logits.argmax(1, true) == asked).sum());
      continue;
    }
    at::Tensor wrong = logits.sub_(total).exp_();  // the probabilities, less one where it is right
    wrong.scatter_add_(1, asked, at::full_like(total, -1)).mul_(*scale);
    if (head.softcap) {
      wrong.mul_(slope);
    }
    wrong = wrong.to(x.scalar_type());
    parts.head_input.narrow(0, begin, count).copy_(at::mm(wrong, head.weight));
    if (gradients.weight.defined()) {
      add_product(gradients.weight, wrong, read);
    }
    if (gradients.bias.defined()) {
      gradients.bias.add_(wrong.sum(0, false, gradients.bias.scalar_type()));
    }
  }
  return parts;
}

}  // namespace

LossParts cross_entropy(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece) {
  return in_pieces(x, head, targets, piece, nullptr, {});
}

LossParts cross_entropy(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece,
                        double scale, const HeadGradients& gradients) {
  return in_pieces(x, head, targets, piece, &scale, gradients);
}

}  // namespace pare
