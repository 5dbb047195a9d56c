#include "pare/train/teacher.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/arch/architecture_json.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

static LossHead head_of(const Model& model, at::ScalarType dtype, at::Device device) {
  const auto load = [&](const TensorId& id) {
    const auto found = model.weights.find(name_of(id));
    return found == model.weights.end() ? at::Tensor() : found->second.load().to(device, dtype);
  };
  const Head& head = model.architecture.head;
  return {.weight = load(weight_of(head.tied ? token_table : head_matrix)),
          .bias = load(bias_of(head_matrix)),
          .softcap = head.softcap,
          .scale = head.scale};
}

Teacher::Teacher(const Model& model, at::ScalarType dtype, at::Device device)
    : executor_(model, dtype, device), head_(head_of(model, dtype, device)) {}

void check_teacher(const TrainConfig& config, const Architecture& student, const Architecture& teacher) {
  Problems problems;
  problems.add_if(teacher.task != student.task, "its task is {}, this run's {}", word(teacher.task),
                  word(student.task));
  problems.add_if(teacher.vocab != student.vocab,
                  "its vocabulary has {} tokens, this run's {}: a token would mean something else to each",
                  teacher.vocab, student.vocab);
  problems.add_if(teacher.head.classes != student.head.classes, "it knows {} classes, this run {}",
                  teacher.head.classes.value_or(0), student.head.classes.value_or(0));
  problems.add_if(teacher.context < context_of(config),
                  "it reads {} tokens, and sequences have {}: make context smaller", teacher.context,
                  context_of(config));
  problems.throw_if_any(fmt::format("the teacher {}", quote(config.teacher)));
}

}  // namespace pare
