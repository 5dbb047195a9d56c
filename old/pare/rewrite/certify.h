#pragma once
// The certificate of a rewrite: that of a comparison, and how the candidate was made.

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "pare/rewrite/rewrite.h"

namespace pare {

// `candidate` is what was read back, `output` the name that it will have, `companions` the SHA-256 of what was copied.
// Reads every file of both models.
nlohmann::ordered_json certify(const ModelFolder& source, const ModelFolder& candidate,
                               const std::filesystem::path& output, const Rewritten& result, const InputSource& asked,
                               const std::map<std::string, std::string>& companions);

}  // namespace pare
