#include "pare/rewrite/plan.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "pare/checkpoint/family.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// The first pass after which the source's family cannot say any more what the model is.
std::string_view without_place(const ModelFolder& source, const Pipeline& pipeline) {
  for (const PassStep& step : pipeline.steps) {
    const Model structure{.architecture = step.proposal.after.architecture};
    try {
      family_config(find_family(source.family, source.path.string()),
                    compatible(structure, source.model.architecture).architecture);
    } catch (const InputError&) {
      return step.call.pass->id;
    }
  }
  return "these passes";
}

}  // namespace

Plan plan_writing(const ModelFolder& source, const Pipeline& pipeline, WrittenForm form,
                  const std::optional<Dtype>& dtype, Companions companions) {
  Plan plan{.form = form, .companions = std::move(companions)};
  try {
    plan.prepared = prepare(source, pipeline.after, {.form = form, .dtype = dtype});
  } catch (const Refused& refusal) {
    throw Refused(fmt::format("--form compat: {}'s own layout has no place for what {} makes; --form strict stores it\n"
                              "  {}",
                              source.family, without_place(source, pipeline), refusal.what()),
                  refusal.reasons);
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
