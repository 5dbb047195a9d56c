#include "pare/rewrite/plan.h"

#include <fmt/format.h>

#include <utility>

#include "pare/rewrite/refusals.h"

namespace pare {

Plan plan_writing(const ModelFolder& source, const Pipeline& pipeline, WrittenForm form,
                  const std::optional<Dtype>& dtype, Companions companions) {
  Plan plan{.form = form, .companions = std::move(companions)};
  try {
    plan.prepared = prepare(source, pipeline.after, form, dtype);
  } catch (const Refused& why) {
    refuse_form(source, pipeline, why);
  }
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
  for (const auto& [name, copy] : plan.prepared.copied) {
    const StoredTensor& tensor = copy.file.tensors().at(copy.name);
    bytes += tensor.end - tensor.begin;
  }
  return bytes;
}

const char* word(WrittenForm form) {
  return form == WrittenForm::compat ? "compat" : "strict";
}

std::string what_it_is(const Plan& plan, const Pipeline& pipeline) {
  if (plan.form == WrittenForm::strict) {
    return "what was removed is not stored; pare reads it";
  }
  int64_t saved = 0;
  for (size_t n = 0; n < pipeline.steps.size(); ++n) {
    saved += pipeline.steps[n].saved_parameters - plan.changes[n].saved;
  }
  if (saved < 0) {
    return "compat, for stock engines: what a pass made larger is larger here too";
  }
  return fmt::format("compat keeps every tensor in its shape, for stock engines{}",
                     saved > 0 ? "; strict is smaller" : "");
}

}  // namespace pare
