#pragma once
// A verification as a table in Markdown: for the page of a pull request, where nobody opens a log.

#include <nlohmann/json.hpp>
#include <string>

namespace pare {

// Of the document that `verify --json` prints.
std::string verify_summary(const nlohmann::ordered_json& document);

}  // namespace pare
