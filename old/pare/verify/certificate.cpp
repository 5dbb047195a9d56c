#include "pare/verify/certificate.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/count.h"
#include "pare/checkpoint/shards.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/sha256.h"
#include "pare/support/text.h"

namespace pare {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* file_name = "certificate.json";
constexpr uint64_t largest_certificate = 256 << 20;

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

ordered_json self_test_json(const std::optional<SelfTest>& t) {
  if (!t) {
    return nullptr;
  }
  return {{"tensor", t->tensor}, {"smallest_caught", t->smallest_caught}, {"largest_missed", t->largest_missed}};
}

// The hashes of one side, checked to be what they should.
const json& files_of(const json& certificate, const char* side) {
  const json* place = &certificate;
  for (const char* key : {side, "files"}) {
    const auto found = place->find(key);
    if (found == place->end() || !found->is_object()) {
      throw InputError(fmt::format("{} has no object {}.files: not a certificate of pare?", file_name, side));
    }
    place = &*found;
  }
  for (const auto& [name, hash] : place->items()) {
    if (!hash.is_string()) {
      throw InputError(
          fmt::format("{}: {}.files.{} is not a SHA-256 in hexadecimal digits", file_name, side, escaped(name)));
    }
  }
  return *place;
}

}  // namespace

ordered_json describe_files(const ModelFolder& model) {
  ordered_json files = ordered_json::object();
  std::vector<fs::path> paths = {model.path / "config.json"};
  int64_t bytes = 0;
  for (const SafetensorsFile& file : open_shards(model.path)) {
    paths.push_back(file.path());
    bytes += static_cast<int64_t>(fs::file_size(file.path()));
  }
  const fs::path index = model.path / "model.safetensors.index.json";
  if (!fs::exists(model.path / "model.safetensors")) {  // shards, then
    paths.push_back(index);
  }
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    files[path.filename().string()] = sha256_of_file(path);
  }
  return {{"path", model.path.string()},
          {"family", model.family},
          {"parameters", count(model.model.architecture).total},
          {"bytes", bytes},
          {"dtype", word(model.dtype)},
          {"files", files}};
}

ordered_json certificate_json(const ordered_json& reference, const ordered_json& candidate, const ordered_json& passes,
                              const InputSource& source, const Verification& v) {
  PARE_CHECK(passes.is_array(), "passes are a list");
  ordered_json floor = {{"dtype", word(v.floor_dtype)}};
  floor.update(metrics_json(v.noise_floor));
  return {{"tool", {{"name", "pare"}, {"version", PARE_VERSION}}},
          {"reference", reference},
          {"candidate", candidate},
          {"passes", passes},
          {"form", nullptr},  // these three are known to who wrote the candidate
          {"companions", nullptr},
          {"formulas", nullptr},
          {"predicted_error", v.predicted_error},
          {"inputs",
           {{"kind", source.kind},
            {"sequences", v.sequences},
            {"tokens", v.tokens},
            {"seed", source.seed ? ordered_json(*source.seed) : ordered_json(nullptr)}}},
          {"compute_dtype", word(v.compute_dtype)},
          {"metrics", metrics_json(v.metrics)},
          {"noise_floor", floor},
          {"first_divergence", divergence_json(v.first_divergence)},
          {"self_test", self_test_json(v.self_test)},
          {"verdict", word(v.verdict)}};
}

std::optional<json> read_certificate(const fs::path& folder) {
  const fs::path path = folder / file_name;
  if (!fs::exists(fs::symlink_status(path))) {
    return std::nullopt;
  }
  json certificate = parse_json(read_text_file(path, largest_certificate), path.string());
  if (!certificate.is_object()) {
    throw InputError(fmt::format("{} holds {}, expected an object: not a certificate of pare?", path.string(),
                                 certificate.is_null() ? "null" : certificate.type_name()));
  }
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
    if (!certified.contains(name)) {
      problems.add(fmt::format("{} was not certified", quote(name)));
    }
  }
  if (!problems.empty()) {
    problems.throw_if_any(fmt::format("{} (rewrite the model again, or remove the certificate)",
                                      (fs::path(folder) / file_name).string()));
  }
}

Origin certified_origin(const json& certificate, const ordered_json& reference) {
  const json& certified = files_of(certificate, "reference");
  const json found = reference.at("files");
  if (certified != found) {
    return {.warnings = {fmt::format("the candidate's {} was made against another reference than {}: it is not used",
                                     file_name, reference.at("path").get<std::string>())}};
  }
  const auto predicted = certificate.find("predicted_error"), passes = certificate.find("passes");
  if (predicted == certificate.end() || !predicted->is_number() || !(predicted->get<double>() >= 0) ||
      passes == certificate.end() || !passes->is_array()) {
    throw InputError(
        fmt::format("{} has no predicted_error of at least 0, or no list of passes: not a certificate of "
                    "pare?",
                    file_name));
  }
  return {.predicted_error = predicted->get<double>(), .passes = *passes};
}

}  // namespace pare
