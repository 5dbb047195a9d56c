#include "pare/rewrite/plan.h"

#include <utility>

namespace pare {

Plan plan_writing(const ModelFolder& source, const Pipeline& pipeline, WrittenForm form,
                  const std::optional<Dtype>& dtype, Companions companions) {
  Plan plan{.form = form, .companions = std::move(companions)};
  plan.prepared = prepare(source, pipeline.after, {.form = form, .dtype = dtype});
  if (form == WrittenForm::compat) {
    plan.changes = compatible_changes(source.model, pipeline);
  } else {
    for (const PassStep& step : pipeline.steps) {
      plan.changes.push_back({.saved = step.saved_parameters});
    }
  }
  for (const StoredChange& change : plan.changes) {
    plan.neutral += change.neutral;
  }
  return plan;
}

uint64_t bytes_of(const Plan& plan) {
  uint64_t bytes = plan.companions.bytes;
  for (const auto& [name, weight] : plan.prepared.model.weights) {
    bytes += static_cast<uint64_t>(bytes_of(element_count(weight.shape()), weight.dtype()));
  }
  return bytes;
}

const char* word(WrittenForm form) {
  return form == WrittenForm::compat ? "compat" : "strict";
}

std::string_view what_it_is(WrittenForm form) {
  return form == WrittenForm::compat ? "compat keeps every tensor in its shape, for stock engines; strict is smaller"
                                     : "what was removed is not stored; pare reads it";
}

}  // namespace pare
