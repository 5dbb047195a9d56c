#include "pare/train/loss.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "pare/support/error.h"
#include "pare/support/interrupt.h"

namespace pare {

namespace {

bool is_narrow(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

// += scale a' b, in the accumulator's own type. It may have fewer rows.
void add_product(const at::Tensor& accumulator, const at::Tensor& a, const at::Tensor& b, double scale) {
  if (!a.is_cuda() && accumulator.scalar_type() == a.scalar_type()) {
    accumulator.addmm_(a.t(), b, 1, scale);
    return;
  }
  const bool widened = a.is_cuda() && accumulator.scalar_type() != a.scalar_type();
  const at::Tensor product = widened ? at::mm(a.t(), b, accumulator.scalar_type()) : at::mm(a.t(), b);
  accumulator.add_(product.narrow(0, 0, accumulator.size(0)), scale);
}

// A GPU's matrix units want sides of round length: an odd vocabulary costs them seven times. Classes are added that no
// softmax sees and no gradient leaves.
at::Tensor padded_weight(const at::Tensor& weight) {
  constexpr int64_t round = 64;
  const int64_t classes = weight.size(0), missing = (round - classes % round) % round;
  return weight.is_cpu() || missing == 0 ? weight : at::constant_pad_nd(weight, {0, 0, 0, missing}, 0);
}

// Of every class and those that were added. Wider than the factors where the device can.
at::Tensor compute_logits(const at::Tensor& x, const at::Tensor& weight, const LossHead& head) {
  const int64_t classes = head.weight.size(0);
  if (!x.is_cuda()) {
    const at::Tensor logits = at::linear(x, weight, head.bias);
    return head.scale == 1 ? logits : logits.mul_(head.scale);
  }
  at::Tensor logits = is_narrow(x) ? at::mm(x, weight.t(), at::kFloat) : at::mm(x, weight.t());
  if (head.bias.defined()) {
    logits.narrow(1, 0, classes).add_(head.bias);
  }
  if (head.scale != 1) {
    logits.mul_(head.scale);
  }
  if (classes < weight.size(0)) {
    logits.narrow(1, classes, weight.size(0) - classes).fill_(-std::numeric_limits<double>::infinity());
  }
  return logits;
}

at::Tensor log_probabilities(const at::Tensor& logits) {
  return at::_log_softmax(is_narrow(logits) ? logits.to(at::kFloat) : logits, 1, /*half_to_float=*/false);
}

struct Wrong {
  at::Tensor loss, plain;  // float64 scalars: of the piece, and of its cross-entropy alone
  at::Tensor by_logits;    // the gradient of the first by the logits, in any type
};

// p - 1[target], of CE.
Wrong wrong_about_targets(const at::Tensor& logits, const at::Tensor& asked, bool with_gradient, at::ScalarType dtype) {
  const at::Tensor logarithms = log_probabilities(logits), right = logarithms.gather(1, asked);
  const at::Tensor loss = right.sum(at::kDouble).neg();
  return {loss, loss, with_gradient ? wrongness(logarithms, asked, right, dtype) : at::Tensor()};
}

// And τ (p_τ - q_τ), of τ² KL. Columns that stand for no class are -infinity on both sides: p and q are 0 there, and a
// difference of their logarithms is no number.
Wrong wrong_about_teacher(const at::Tensor& logits, const at::Tensor& answers, const at::Tensor& asked, int64_t classes,
                          const Taught& teacher) {
  const double weight = teacher.weight, tau = teacher.temperature;
  const at::Tensor wanted = log_probabilities(tau == 1 ? answers : answers / tau);
  const at::Tensor found = log_probabilities(tau == 1 ? logits : logits / tau);
  const at::Tensor plain = tau == 1 ? found : log_probabilities(logits), right = plain.gather(1, asked);
  const at::Tensor share = wanted.exp();
  const at::Tensor apart = (wanted - found).narrow(1, 0, classes).mul_(share.narrow(1, 0, classes));
  Wrong wrong{.plain = right.sum(at::kDouble).neg(), .by_logits = (found.exp() - share).mul_(weight * tau)};
  wrong.loss = (1 - weight) * wrong.plain + weight * tau * tau * apart.sum(at::kDouble);
  if (weight < 1) {
    wrong.by_logits.add_(wrongness(plain, asked, right, plain.scalar_type()), 1 - weight);
  }
  return wrong;
}

LossParts in_pieces(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece,
                    const double* scale, const HeadGradients& gradients, const Taught* teacher) {
  const at::NoGradGuard no_grad;
  PARE_CHECK(head.weight.defined() && x.dim() == 2 && targets.dim() == 1 && targets.size(0) == x.size(0) &&
                 (!teacher || teacher->x.size(0) == x.size(0)),
             "rows and targets that do not belong together");
  const int64_t rows = x.size(0);
  const HeadProduct product(head);
  const std::optional<HeadProduct> theirs = teacher ? std::optional<HeadProduct>(teacher->head) : std::nullopt;
  const int64_t held = teacher ? 2 * product.columns() : product.columns();
  const int64_t step = std::clamp<int64_t>(piece / held, 1, std::max<int64_t>(rows, 1));
  LossParts parts{.sum = at::zeros({}, x.options().dtype(at::kDouble))};
  if (scale) {
    parts.head_input = at::empty_like(x);
  } else {
    parts.right = at::zeros({}, x.options().dtype(at::kLong));
  }
  if (teacher) {
    parts.plain = at::zeros_like(parts.sum);
  }
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const at::Tensor read = x.narrow(0, begin, count), asked = targets.narrow(0, begin, count).unsqueeze(1);
    read.is_cpu() ? check_interrupt() : void();  // what a GPU is handed may be recorded
    const auto [logits, slope] = product.scores(read);
    if (!scale) {
      parts.right.add_((logits.argmax(1, true) == asked).sum());
    }
    Wrong wrong = teacher ? wrong_about_teacher(logits, theirs->scores(teacher->x.narrow(0, begin, count)).logits,
                                                asked, product.classes(), *teacher)
                          : wrong_about_targets(logits, asked, scale != nullptr,
                                                head.softcap ? logits.scalar_type() : x.scalar_type());
    parts.sum.add_(wrong.loss);
    if (teacher) {
      parts.plain.add_(wrong.plain);
    }
    if (!scale) {
      continue;
    }
    if (head.softcap) {
      wrong.by_logits.mul_(slope);
    }
    product.go_back(wrong.by_logits.to(x.scalar_type()), read, *scale, parts.head_input.narrow(0, begin, count),
                    gradients);
  }
  return parts;
}

}  // namespace

// A softcap would bend what stands for nothing.
HeadProduct::HeadProduct(const LossHead& head)
    : head_(head), weight_(head.softcap ? head.weight : padded_weight(head.weight)) {}

HeadProduct::Scores HeadProduct::scores(const at::Tensor& x) const {
  const at::Tensor logits = compute_logits(x, weight_, head_);
  if (!head_.softcap) {
    return {logits, {}};
  }
  const at::Tensor bent = at::tanh((is_narrow(logits) ? logits.to(at::kFloat) : logits) / *head_.softcap);
  return {*head_.softcap * bent, 1 - bent.square()};
}

void HeadProduct::go_back(const at::Tensor& wrong, const at::Tensor& x, double scale, const at::Tensor& head_input,
                          const HeadGradients& gradients) const {
  const double whole = scale * head_.scale;
  head_input.addmm_(wrong, weight_, /*beta=*/0, /*alpha=*/whole);
  if (gradients.weight.defined()) {
    add_product(gradients.weight, wrong, x, whole);
  }
  if (gradients.bias.defined()) {
    gradients.bias.add_(wrong.sum(0, false, gradients.bias.scalar_type()).narrow(0, 0, classes()), whole);
  }
}

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

LossParts cross_entropy(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece) {
  return in_pieces(x, head, targets, piece, nullptr, {}, nullptr);
}

LossParts cross_entropy(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, int64_t piece,
                        double scale, const HeadGradients& gradients, const Taught* teacher) {
  return in_pieces(x, head, targets, piece, &scale, gradients, teacher);
}

}  // namespace pare
