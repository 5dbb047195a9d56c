#pragma once
// certificate.json: what was compared, file by file, and what came out. docs/formats.md describes it.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/verify/question.h"
#include "pare/verify/verify.h"

namespace pare {

// {path, family, parameters, bytes, dtype, files: {name: SHA-256}}, over every file that makes the model. Reads all of
// them.
nlohmann::ordered_json describe_files(const ModelFolder& model);

// The whole document. `reference` and `candidate` come from describe_files; `passes` is an array, empty where the
// candidate's origin is unknown.
nlohmann::ordered_json certificate_json(const nlohmann::ordered_json& reference,
                                        const nlohmann::ordered_json& candidate, const nlohmann::ordered_json& passes,
                                        const InputSource& source, const Verification& verification);

// The certificate beside a model, or nothing where there is none. InputError where it is no certificate.
std::optional<nlohmann::json> read_certificate(const std::filesystem::path& folder);

// InputError naming the file, the hash found and the one expected, unless the files are those that were certified.
void check_certified(const nlohmann::json& certificate, const nlohmann::ordered_json& candidate);

// What the certificate says of how the candidate was made; nothing, with a warning, where it was made against another
// reference.
struct Origin {
  double predicted_error = 0;
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  std::vector<std::string> warnings = {};
};
Origin certified_origin(const nlohmann::json& certificate, const nlohmann::ordered_json& reference);

}  // namespace pare
