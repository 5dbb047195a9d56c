#include "pare/verify/certificate.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/count.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"

namespace pare {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* file_name = "certificate.json";
constexpr uint64_t largest_certificate = 256 << 20;
constexpr size_t most_claimed = 1000, longest_id = 80;

ordered_json optional_number(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json metrics_json(const Metrics& m) {
  return {{"max_relative_logit_error", m.max_relative_logit_error},
          {"mean_kl_nats", optional_number(m.mean_kl_nats)},
          {"max_kl_nats", optional_number(m.max_kl_nats)},
          {"top1_agreement", optional_number(m.top1_agreement)},
          {"reference_nll_nats", optional_number(m.reference_nll_nats)},
          {"candidate_nll_nats", optional_number(m.candidate_nll_nats)}};
}

ordered_json divergence_json(const std::optional<Divergence>& d) {
  if (!d) {
    return nullptr;
  }
  return {{"tap", d->tap},
          {"difference", d->difference},
          {"allowed", d->allowed},
          {"sequence", d->sequence},
          {"note", d->note.empty() ? ordered_json(nullptr) : ordered_json(d->note)}};
}

ordered_json self_tests_json(const std::vector<SelfTest>& tests) {
  return mapped(tests, [](const SelfTest& t) {
    return ordered_json{{"tensor", t.tensor},
                        {"smallest_caught", t.smallest_caught > 0 ? ordered_json(t.smallest_caught) : nullptr},
                        {"largest_missed", t.largest_missed}};
  });
}

ordered_json differences_json(const std::vector<SettingDifference>& differences) {
  return mapped(differences, [](const SettingDifference& d) {
    return ordered_json{{"setting", d.setting}, {"reference", d.reference}, {"candidate", d.candidate}};
  });
}

ordered_json proof_json(const Proof& proof) {
  ordered_json relations = ordered_json::array();
  for (const Relation& r : proof.relations) {
    relations.push_back({{"tensor", r.tensor}, {"how", word(r.how)}, {"residual", r.residual}});
  }
  return {{"complete", proof.complete},
          {"weights_moved_by", proof.moved},
          {"condition", proof.condition},
          {"relations", relations},
          {"gaps", proof.gaps}};
}

ordered_json coverage_json(const Coverage& coverage) {
  return {{"complete", coverage.complete}, {"longest_sequence", coverage.longest},
          {"context", coverage.context},   {"known_other", coverage.known_other},
          {"tensors", coverage.tensors},   {"not_exercised", coverage.not_exercised}};
}

ordered_json claim_json(const std::optional<Claim>& claim) {
  if (!claim) {
    return nullptr;
  }
  return {{"passes", claim->passes}, {"reference_matches", claim->reference_matches}};
}

ordered_json with_error(const WithError& value) {
  return {{"value", value.value}, {"error", value.error}};
}

ordered_json statistics_json(const std::optional<TextStatistics>& statistics) {
  if (!statistics) {
    return nullptr;
  }
  const TextStatistics& s = *statistics;
  return {{"rows", s.rows},
          {"predicted", s.predicted},
          {"mean_kl", with_error(s.mean_kl)},
          {"median_kl", s.median_kl},
          {"high_kl", s.high_kl},
          {"max_kl", s.max_kl},
          {"reference_perplexity", with_error(s.reference_perplexity)},
          {"candidate_perplexity", with_error(s.candidate_perplexity)},
          {"nats_more", with_error(s.nats_more)},
          {"rms_probability", with_error(s.rms_probability)},
          {"same_top", with_error(s.same_top)}};
}

ordered_json compared_json(const std::vector<ComparedTensor>& tensors) {
  return mapped(tensors, [](const ComparedTensor& t) {
    return ordered_json{{"tensor", t.tensor},
                        {"how", word(t.how)},
                        {"entries", t.entries},
                        {"wrong", t.wrong},
                        {"clipped", t.clipped},
                        {"largest_error", t.largest_error},
                        {"largest_clip", t.largest_clip},
                        {"relative_error", t.relative_error},
                        {"reason", t.reason.empty() ? ordered_json(nullptr) : ordered_json(t.reason)}};
  });
}

ordered_json quantisation_json(const std::optional<Quantisation>& quantisation) {
  if (!quantisation) {
    return nullptr;
  }
  return {{"types", quantisation->types},
          {"settings", quantisation->settings},
          {"tensors", compared_json(quantisation->tensors)}};
}

ordered_json costs_json(const std::vector<TensorCost>& costs) {
  return mapped(costs, [](const TensorCost& cost) {
    return ordered_json{{"tensor", cost.tensor}, {"mean_kl", with_error(cost.mean_kl)}, {"max_kl", cost.max_kl}};
  });
}

// The name of a function, as ids are: whatever else a stranger wrote there must not be printed beside the verdict.
bool is_pass_id(std::string_view id) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !id.empty() && id.size() <= longest_id && std::ranges::all_of(id, is_word);
}

// The hashes of one side, checked to be what they should.
const json& files_of(const json& certificate, const char* side) {
  const json* place = &certificate;
  for (const char* key : {side, "files"}) {
    const auto found = place->find(key);
    refuse_if(found == place->end() || !found->is_object(), "{} has no object {}.files: not a certificate of pare?",
              file_name, side);
    place = &*found;
  }
  for (const auto& [name, hash] : place->items()) {
    refuse_if(!hash.is_string(), "{}: {}.files.{} is not a SHA-256 in hexadecimal digits", file_name, side,
              escaped(name));
  }
  return *place;
}

}  // namespace

ordered_json describe_files(const ModelFolder& model) {
  ordered_json described = {{"path", model.path.string()},
                            {"family", model.family},
                            {"parameters", count(model.model.architecture).total},
                            {"bytes", stored_bytes(model)},
                            {"dtype", word(model.dtype)},
                            {"files", file_hashes(model)},
                            {"ignored_keys", model.ignored_keys},
                            {"unused_tensors", to_json(model.unused)}};
  if (model.adapter) {
    described["adapter"] = to_json(*model.adapter);
  }
  return described;
}

ordered_json certificate_json(const ordered_json& reference, const ordered_json& candidate, const ordered_json& passes,
                              const std::string& input_kind, const Verification& v, const std::optional<Claim>& claim) {
  PARE_CHECK(passes.is_array(), "passes are a list");
  const bool asked = v.tokens > 0;                // settings that differ are enough
  const bool by_rows = asked && !v.quantisation;  // then rows decide nothing
  const auto if_judged = [by_rows](ordered_json value) { return by_rows ? std::move(value) : ordered_json(nullptr); };
  const auto if_asked = [asked](ordered_json value) { return asked ? std::move(value) : ordered_json(nullptr); };
  ordered_json floor = {{"dtype", word(v.floor_dtype)}};
  floor.update(metrics_json(v.noise_floor));
  return {{"tool", {{"name", "pare"}, {"version", PARE_VERSION}}},
          {"reference", reference},
          {"candidate", candidate},
          {"passes", passes},
          {"claim", claim_json(claim)},
          {"form", nullptr},  // these six are known to who wrote the candidate
          {"companions", nullptr},
          {"links", nullptr},
          {"formulas", nullptr},
          {"predicted_error", nullptr},
          {"approximate", nullptr},
          {"inputs",
           {{"kind", input_kind},
            {"sequences", v.sequences},
            {"tokens", v.tokens},
            {"given", v.given},
            {"seed", v.seed},
            // The digits of the hash: as a number it would lose some in languages without 64 bits.
            {"drawn_seed", fmt::format("{:016x}", v.drawn_seed)}}},
          {"compute_dtype", word(v.compute_dtype)},
          {"metrics", if_asked(metrics_json(v.metrics))},
          {"noise_floor", if_judged(floor)},
          {"excess", if_judged(v.excess)},
          {"allowed_error", if_judged(v.allowed)},
          {"allowed_for", if_judged(v.allowed_for)},
          {"first_divergence", divergence_json(v.first_divergence)},
          {"differences", differences_json(v.differences)},
          {"proof", if_judged(proof_json(v.proof))},
          {"coverage", if_judged(coverage_json(v.coverage))},
          {"self_test", self_tests_json(v.self_tests)},
          {"quantisation", quantisation_json(v.quantisation)},
          {"apart", compared_json(v.apart)},
          {"near_misses", v.near_misses},
          {"statistics", statistics_json(v.statistics)},
          {"tensor_costs", costs_json(v.costs)},
          {"verdict", word(v.verdict)},
          {"warnings", v.warnings}};
}

std::optional<json> read_certificate(const fs::path& folder) {
  const fs::path path = folder / file_name;
  if (!fs::exists(fs::symlink_status(path))) {
    return std::nullopt;
  }
  json certificate = parse_json(read_text_file(path, largest_certificate), path.string());
  refuse_if(!certificate.is_object(), "{} holds {}, expected an object: not a certificate of pare?", path.string(),
            certificate.is_null() ? "null" : certificate.type_name());
  files_of(certificate, "reference");
  files_of(certificate, "candidate");
  return certificate;
}

void check_certified(const json& certificate, const ordered_json& candidate) {
  const json& certified = files_of(certificate, "candidate");
  const ordered_json& found = candidate.at("files");
  const std::string folder = candidate.at("path").get<std::string>();
  Problems problems;
  for (const auto& [name, hash] : certified.items()) {
    if (!found.contains(name)) {
      problems.add(fmt::format("{} was certified but does not belong to the model any more", quote(name)));
    } else if (found.at(name) != hash) {
      problems.add(fmt::format("{} has the SHA-256 {}, expected {}: it was changed after it was certified", quote(name),
                               found.at(name).get<std::string>(), escaped(hash.get<std::string>())));
    }
  }
  for (const auto& [name, hash] : found.items()) {
    problems.add_if(!certified.contains(name), "{} was not certified", quote(name));
  }
  if (!problems.empty()) {
    problems.throw_if_any(fmt::format("{} (rewrite the model again, or remove the certificate)",
                                      (fs::path(folder) / file_name).string()));
  }
}

Claim read_claim(const json& certificate, const ordered_json& reference) {
  Claim claim{.reference_matches = files_of(certificate, "reference") == json(reference.at("files"))};
  const auto passes = certificate.find("passes");
  refuse_if(passes == certificate.end() || !passes->is_array() || passes->size() > most_claimed,
            "{} has no list of at most {} passes: not a certificate of pare?", file_name, most_claimed);
  for (const json& pass : *passes) {
    const auto id = pass.is_object() ? pass.find("id") : pass.end();
    refuse_if(id == pass.end() || !id->is_string() || !is_pass_id(id->get_ref<const std::string&>()),
              "{}: a pass has an id that is not a word of up to {} letters, digits and underscores: not a "
              "certificate of pare?",
              file_name, longest_id);
    claim.passes.push_back(id->get<std::string>());
  }
  return claim;
}

}  // namespace pare
