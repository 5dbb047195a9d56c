#pragma once
// The corpora that a claim trains on: where they lie, and where a configuration names them.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace pare {

// A file or folder of the corpora as it lies there, maybe compressed.
std::optional<std::string> in_corpora(const std::filesystem::path& data, const std::string& name);

// What a configuration names of the corpora.
std::vector<nlohmann::json*> corpora_in(nlohmann::json& config);

}  // namespace pare
