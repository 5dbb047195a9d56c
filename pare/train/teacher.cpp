#include "pare/train/teacher.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
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

// Of the classes alone, in a type that is wide enough for a softmax.
at::Tensor class_scores(const at::Tensor& logits, int64_t classes) {
  const bool narrow = logits.scalar_type() == at::kBFloat16 || logits.scalar_type() == at::kHalf;
  const at::Tensor wide = narrow ? logits.to(at::kFloat) : logits;
  return wide.size(1) == classes ? wide : wide.narrow(1, 0, classes);
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
  const HeadProduct product(head), theirs(teacher.head);
  const int64_t rows = x.size(0), classes = product.classes();
  const int64_t step = std::max<int64_t>(1, piece / 2 / product.columns());
  const at::TensorOptions wide = x.options().dtype(at::kDouble);
  LossParts parts{.sum = at::zeros({}, wide), .plain = at::zeros({}, wide), .head_input = at::empty_like(x)};
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const at::Tensor read = x.narrow(0, begin, count), asked = targets.narrow(0, begin, count).unsqueeze(1);
    read.is_cpu() ? check_interrupt() : void();
    const HeadProduct::Scores own = product.scores(read);
    const at::Tensor scores = class_scores(own.logits, classes);
    const at::Tensor answers = class_scores(theirs.scores(teacher.x.narrow(0, begin, count)).logits, classes);
    const at::Tensor wanted = at::log_softmax(answers / tau, 1), found = at::log_softmax(scores / tau, 1);
    const at::Tensor share = wanted.exp(), given = found.exp();
    const at::Tensor plain = tau == 1 ? found : at::log_softmax(scores, 1), right = plain.gather(1, asked);
    const at::Tensor sum = right.sum(at::kDouble);
    parts.plain.sub_(sum);
    parts.sum.add_(sum, weight - 1);
    parts.sum.add_((share * (wanted - found)).sum(at::kDouble), weight * tau * tau);
    // d/dz of the two: p - 1[target], and τ² (p_τ - q_τ) / τ.
    at::Tensor wrong = wrongness(plain, asked, right, plain.scalar_type());
    wrong.mul_(1 - weight).add_(given - share, weight * tau);
    if (own.slope.defined()) {
      wrong.mul_(own.slope);
    }
    wrong = wrong.to(x.scalar_type());
    if (product.columns() > classes) {
      wrong = at::constant_pad_nd(wrong, {0, product.columns() - classes}, 0);
    }
    product.go_back(wrong, read, scale, parts.head_input.narrow(0, begin, count), gradients);
  }
  return parts;
}

}  // namespace pare
