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
    json["saved_bytes"] = bytes_of(change.saved, result.dtype);
    json["neutral_parameters"] = change.neutral;
    passes.push_back(std::move(json));
  }
  return passes;
}

}  // namespace

nlohmann::ordered_json certify(const ModelFolder& source, const ModelFolder& candidate,
                               const std::filesystem::path& output, const Rewritten& result, const InputSource& asked,
                               const std::map<std::string, std::string>& companions) {
  nlohmann::ordered_json described = describe_files(candidate);
  described["path"] = output.string();
  const Verification unseen{.predicted_error = predicted_error(result.pipeline.roundings, result.dtype)};
  nlohmann::ordered_json certificate = certificate_json(describe_files(source), described, passes_json(result), asked,
                                                        result.verification.value_or(unseen));
  certificate["form"] = {{"name", word(result.plan.form)},
                         {"neutral_parameters", result.plan.neutral},
                         {"note", what_it_is(result.plan.form)}};
  certificate["companions"] = companions;
  certificate["formulas"] = to_json(result.plan.prepared.explanation);
  if (!result.verification) {
    for (const char* key :
         {"inputs", "compute_dtype", "metrics", "noise_floor", "first_divergence", "self_test", "verdict"}) {
      certificate[key] = nullptr;
    }
  }
  return certificate;
}

}  // namespace pare
