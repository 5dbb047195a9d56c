#include "pare/rewrite/certify.h"

#include <nlohmann/json.hpp>

#include "pare/rewrite/reasons.h"
#include "pare/verify/certificate.h"

namespace pare {

namespace {

nlohmann::ordered_json passes_json(const Rewritten& result) {
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  for (size_t n = 0; n < result.pipeline.steps.size(); ++n) {
    const StoredChange& change = result.plan.changes[n];
    nlohmann::ordered_json json = to_json(result.pipeline.steps[n], result.dtype);
    json["saved_parameters"] = change.saved;
    if (result.plan.form == WrittenForm::compat) {  // which stores no pivots
      json["saved_bytes"] = bytes_of(change.saved, result.dtype);
    }
    json["neutral_parameters"] = change.neutral;
    passes.push_back(std::move(json));
  }
  return passes;
}

nlohmann::ordered_json approximate_json(const Rewritten& result) {
  if (!result.allowed_error) {
    return nullptr;
  }
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  for (const PassStep& step : result.pipeline.steps) {
    if (!step.proposal.approximation.empty()) {
      passes.push_back({{"id", step.call.pass->id}, {"what", step.proposal.approximation}});
    }
  }
  nlohmann::ordered_json json = {{"passes", passes}, {"max_error", *result.allowed_error}, {"measured_error", nullptr}};
  if (result.verification) {
    json["measured_error"] = result.verification->metrics.max_relative_logit_error;
  }
  return json;
}

}  // namespace

nlohmann::ordered_json certify(const ModelFolder& source, const ModelFolder& candidate,
                               const std::filesystem::path& output, const Rewritten& result,
                               const std::string& input_kind, const std::map<std::string, std::string>& companions) {
  nlohmann::ordered_json described = describe_files(candidate);
  described["path"] = output.string();
  nlohmann::ordered_json certificate = certificate_json(describe_files(source), described, passes_json(result),
                                                        input_kind, result.verification.value_or(Verification{}));
  certificate["predicted_error"] = result.predicted_error();
  certificate["approximate"] = approximate_json(result);
  certificate["form"] = {{"name", word(result.plan.form)},
                         {"neutral_parameters", result.plan.neutral},
                         {"note", what_it_is(result.plan, result.pipeline)}};
  certificate["companions"] = companions;
  certificate["links"] = result.plan.companions.followed;
  certificate["formulas"] = to_json(result.plan.prepared.explanation);
  certificate["unused_tensors"] = to_json(compare_unused(source.unused, candidate.unused));
  if (!result.verification) {
    for (const char* key : {"inputs", "compute_dtype", "metrics", "noise_floor", "excess", "allowed_error",
                            "first_divergence", "proof", "coverage", "self_test", "verdict"}) {
      certificate[key] = nullptr;
    }
  }
  return certificate;
}

}  // namespace pare
