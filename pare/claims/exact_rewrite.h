#pragma once
// What can be removed exactly from a model that was trained for a claim.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace pare {

// The last checkpoint of a run folder, rewritten by these passes in float64 and verified; kept nowhere:
// {"before", "after", "verdict", "error"} with parameters and the relative error, or {"refused": why}.
nlohmann::ordered_json rewritten_exactly(const std::filesystem::path& run, const std::string& passes);

}  // namespace pare
