#pragma once
// certificate.json: what was compared, file by file, and what came out. docs/formats.md describes it.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/verify/verify.h"

namespace pare {

// {path, family, parameters, bytes, dtype, files: {name: SHA-256}, ...}, over every file that the model was read from.
// Call it after the comparison (again, where it was called before: that costs nothing): a file that was written to
// meanwhile is an InputError, and nothing is certified.
nlohmann::ordered_json describe_files(const ModelFolder& model);

// What a candidate's certificate says of itself. Anyone can write one, so nothing is decided by it.
struct Claim {
  std::vector<std::string> passes;  // ids: short words
  bool reference_matches = false;   // whether it is about this reference at all
};
// InputError where the certificate has no list of passes, or one that pare cannot have written.
Claim read_claim(const nlohmann::json& certificate, const nlohmann::ordered_json& reference);

// The whole document. `reference` and `candidate` come from describe_files. `passes` are those that the caller applied
// itself, an array; what a candidate only says of itself is its `claim`.
nlohmann::ordered_json certificate_json(const nlohmann::ordered_json& reference,
                                        const nlohmann::ordered_json& candidate, const nlohmann::ordered_json& passes,
                                        const std::string& input_kind, const Verification& verification,
                                        const std::optional<Claim>& claim = std::nullopt);

// The certificate beside a model, or nothing where there is none. InputError where it is no certificate.
std::optional<nlohmann::json> read_certificate(const std::filesystem::path& folder);

// InputError naming the file, the hash found and the one expected, unless the files are those that were certified.
void check_certified(const nlohmann::json& certificate, const nlohmann::ordered_json& candidate);

}  // namespace pare
