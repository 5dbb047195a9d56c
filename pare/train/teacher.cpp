#include "pare/train/teacher.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace {

LossHead head_of(const Model& model, at::ScalarType dtype, at::Device device) {
  const auto load = [&](const TensorId& id) {
    const auto found = model.weights.find(name_of(id));
    return found == model.weights.end() ? at::Tensor() : found->second.load().to(device, dtype);
  };
  const Head& head = model.architecture.head;
  return {.weight = load(weight_of(head.tied ? token_table : head_matrix)),
          .bias = load(bias_of(head_matrix)),
          .softcap = head.softcap};
}

struct Scores {
  at::Tensor logits, slope;  // slope: of the softcap, undefined without one
};

Scores scores_of(const at::Tensor& x, const LossHead& head) {
  at::Tensor logits = at::linear(x, head.weight, head.bias);
  if (logits.scalar_type() == at::kBFloat16 || logits.scalar_type() == at::kHalf) {
    logits = logits.to(at::kFloat);
  }
  if (!head.softcap) {
    return {logits, {}};
  }
  const at::Tensor bent = at::tanh(logits / *head.softcap);
  return {*head.softcap * bent, 1 - bent.square()};
}

}  // namespace

Teacher::Teacher(const Model& model, at::ScalarType dtype, at::Device device)
    : executor_(model, dtype, device), head_(head_of(model, dtype, device)) {}

void check_teacher(const TrainConfig& config, const Architecture& student, const Architecture& teacher) {
  Problems problems;
  if (teacher.task != student.task) {
    problems.add(fmt::format("its task is {}, this run's {}", word(teacher.task), word(student.task)));
  }
  if (teacher.vocab != student.vocab) {
    problems.add(fmt::format("its vocabulary has {} tokens, this run's {}: a token would mean something else to each",
                             teacher.vocab, student.vocab));
  }
  if (teacher.head.classes != student.head.classes) {
    problems.add(fmt::format("it knows {} classes, this run {}", teacher.head.classes.value_or(0),
                             student.head.classes.value_or(0)));
  }
  if (teacher.context < context_of(config)) {
    problems.add(fmt::format("it reads {} tokens, and sequences have {}: make context smaller", teacher.context,
                             context_of(config)));
  }
  problems.throw_if_any(fmt::format("the teacher {}", quote(config.teacher)));
}

LossParts distilled_loss(const at::Tensor& x, const LossHead& head, const at::Tensor& targets, const Distilled& teacher,
                         int64_t piece, double scale, const HeadGradients& gradients) {
  const at::NoGradGuard no_grad;
  PARE_CHECK(x.dim() == 2 && targets.size(0) == x.size(0) && teacher.x.size(0) == x.size(0),
             "rows and targets that do not belong together");
  const double weight = teacher.weight, tau = teacher.temperature;
  const int64_t rows = x.size(0), step = std::max<int64_t>(1, piece / 2 / head.weight.size(0));
  const at::TensorOptions wide = x.options().dtype(at::kDouble);
  LossParts parts{.sum = at::zeros({}, wide), .plain = at::zeros({}, wide), .head_input = at::empty_like(x)};
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const at::Tensor read = x.narrow(0, begin, count), asked = targets.narrow(0, begin, count).unsqueeze(1);
    const Scores own = scores_of(read, head);
    const at::Tensor wanted =
        at::log_softmax(scores_of(teacher.x.narrow(0, begin, count), teacher.head).logits / tau, 1);
    const at::Tensor found = at::log_softmax(own.logits / tau, 1), share = wanted.exp();
    const at::Tensor plain = tau == 1 ? found : at::log_softmax(own.logits, 1);
    const at::Tensor right = plain.gather(1, asked).sum(at::kDouble);
    parts.plain.sub_(right);
    parts.sum.add_(right, weight - 1);
    parts.sum.add_((share * (wanted - found)).sum(at::kDouble), weight * tau * tau);
    // d/dz of the two: p - 1[target], and τ² (p_τ - q_τ) / τ.
    at::Tensor wrong = plain.exp();
    wrong.scatter_add_(1, asked, at::full_like(asked, -1, wrong.options()));
    wrong.mul_(1 - weight).add_(found.exp() - share, weight * tau).mul_(scale);
    if (own.slope.defined()) {
      wrong.mul_(own.slope);
    }
    wrong = wrong.to(x.scalar_type());
    parts.head_input.narrow(0, begin, count).copy_(at::mm(wrong, head.weight));
    if (gradients.weight.defined()) {
      gradients.weight.add_(at::mm(wrong.t(), read));
    }
    if (gradients.bias.defined()) {
      gradients.bias.add_(wrong.sum(0, false, gradients.bias.scalar_type()));
    }
  }
  return parts;
}

}  // namespace pare
