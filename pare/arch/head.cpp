#include "pare/arch/head.h"

#include "pare/support/error.h"

namespace pare {

bool is_language_model(const Architecture& a) {
  return a.task == Task::causal_lm || a.task == Task::masked_lm;
}

bool has_classes(const Architecture& a) {
  return !is_language_model(a) && a.task != Task::encoder;
}

bool answers_sequences(const Architecture& a) {
  return a.task == Task::classifier || a.task == Task::next_sentence;
}

bool has_pooler(const Architecture& a) {
  const bool pools =
      a.head.transform || a.head.pool_norm || a.head.pool == Pool::token || a.head.pool == Pool::attention;
  return a.task == Task::encoder && pools && a.head.pool != Pool::none;
}

// Question answering chooses among tokens, and a single class is a value.
bool is_choice(const Architecture& a) {
  return a.task != Task::question_answering && head_size(a) > 1;
}

int64_t head_size(const Architecture& a) {
  return a.task == Task::encoder ? 0 : a.head.classes.value_or(a.vocab);
}

int64_t hidden_width(const Architecture& a) {
  return a.task == Task::encoder && a.head.pool == Pool::none ? head_input_width(a) : a.width;
}

int64_t head_input_width(const Architecture& a) {
  if (!a.head.transform) {
    return a.width;
  }
  return a.head.transform->width.value_or(is_language_model(a) ? token_width(a) : a.width);
}

int64_t sequence_head_input_width(const Architecture& a) {
  PARE_CHECK(a.head.sequence, "only a model with a second head has its width");
  const std::optional<HeadTransform>& transform = a.head.sequence->transform;
  return transform ? transform->width.value_or(a.width) : a.width;
}

}  // namespace pare
