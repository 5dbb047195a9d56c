#include "pare/train/loss.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "pare/support/error.h"

namespace pare {

namespace {

bool is_narrow(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

// += scale a' b, in the accumulator's own type.
void add_product(const at::Tensor& accumulator, const at::Tensor& a, const at::Tensor& b, double scale) {
  if (accumulator.scalar_type() == a.scalar_type()) {
    accumulator.addmm_(a.t(), b, 1, scale);
  } else if (a.is_cuda()) {
    accumulator.add_(at::mm(a.t(), b, accumulator.scalar_type()), scale);
  } else {
    accumulator.add_(at::mm(a.t(), b), scale);
  }
}

// A GPU's matrix units want rows that begin at round addresses: columns are added that no softmax sees.
int64_t columns_of(const at::Tensor& x, const LossHead& head) {
  constexpr int64_t round = 64;
  const int64_t classes = head.weight.size(0);
  return x.is_cpu() || head.softcap ? classes : (classes + round - 1) / round * round;
}

// The logits of some rows, into the first columns of `into`.
void compute_logits(const at::Tensor& into, const at::Tensor& x, const LossHead& head) {
  at::Tensor logits = into.narrow(1, 0, head.weight.size(0));
  if (head.bias.defined()) {
    at::addmm_out(logits, head.bias, x, head.weight.t());
  } else {
    at::mm_out(logits, x, head.weight.t());
  }
}

at::Tensor log_probabilities(const at::Tensor& logits) {
  const bool narrow = is_narrow(logits);
  if (narrow && logits.is_cuda()) {
    return at::_log_softmax(logits, 1, /*half_to_float=*/true);
  }
  return at::_log_softmax(narrow ? logits.to(at::kFloat) : logits, 1, false);
}

// softmax - 1 where a target is, in the type of the products. Near 1 a probability in a narrow type is no longer
// distinguished from 1: there the difference is computed in the wide type.
at::Tensor wrongness(at::Tensor logarithms, const at::Tensor& asked, const at::Tensor& right, at::ScalarType dtype) {
  at::Tensor wrong;
  if (dtype == logarithms.scalar_type()) {
    wrong = logarithms.exp_();
  } else {
    wrong = at::empty_like(logarithms, logarithms.options().dtype(dtype));
    at::exp_out(wrong, logarithms);
  }
  return wrong.scatter_(1, asked, at::expm1(right).to(dtype));
}

LossParts in_pieces(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece,
                    const double* scale, const HeadGradients& gradients) {
  const at::NoGradGuard no_grad;
  PARE_CHECK(head.weight.defined() && x.dim() == 2 && targets.dim() == 1 && targets.size(0) == x.size(0),
             "rows and targets that do not belong together");
  const int64_t rows = x.size(0), classes = head.weight.size(0), columns = columns_of(x, head);
  const int64_t step = std::clamp<int64_t>(piece / columns, 1, std::max<int64_t>(rows, 1));
  LossParts parts{.sum = at::zeros({}, x.options().dtype(at::kDouble))};
  if (scale) {
    parts.head_input = at::empty_like(x);
  } else {
    parts.right = at::zeros({}, x.options().dtype(at::kLong));
  }
  const at::Tensor buffer = columns == classes
                                ? at::empty({step, classes}, x.options())
                                : at::full({step, columns}, -std::numeric_limits<double>::infinity(), x.options());
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const at::Tensor read = x.narrow(0, begin, count), asked = targets.narrow(0, begin, count).unsqueeze(1);
    at::Tensor logits = buffer.narrow(0, 0, count), slope;
    compute_logits(logits, read, head);
    if (head.softcap) {
      const at::Tensor bent = at::tanh((is_narrow(logits) ? logits.to(at::kFloat) : logits) / *head.softcap);
      slope = 1 - bent.square();
      logits = *head.softcap * bent;
    }
    if (!scale) {
      parts.right.add_((logits.argmax(1, true) == asked).sum());
    }
    const at::Tensor logarithms = log_probabilities(logits), right = logarithms.gather(1, asked);
    parts.sum.sub_(right.sum(at::kDouble));
    if (!scale) {
      continue;
    }
    at::Tensor wrong = wrongness(logarithms, asked, right, head.softcap ? logits.scalar_type() : x.scalar_type());
    if (head.softcap) {
      wrong = wrong.mul_(slope).to(x.scalar_type());
    }
    wrong = wrong.narrow(1, 0, classes);
    parts.head_input.narrow(0, begin, count).addmm_(wrong, head.weight, /*beta=*/0, /*alpha=*/*scale);
    if (gradients.weight.defined()) {
      add_product(gradients.weight, wrong, read, *scale);
    }
    if (gradients.bias.defined()) {
      gradients.bias.add_(wrong.sum(0, false, gradients.bias.scalar_type()), *scale);
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
