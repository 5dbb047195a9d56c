#pragma once
// Text that may hold anything, made safe for each place in a page.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace pare {

// For text between tags and inside quoted attributes. Broken UTF-8 and control characters become U+FFFD, and so do
// those that turn the direction of what follows: names come from files, and must not rearrange what we say of them.
std::string html_text(std::string_view text);

// For <script type="application/json">, which nothing in the text can end.
std::string script_json(const nlohmann::ordered_json& json);

// A number for a table: four digits, and a dash where it is none.
std::string number_text(double value);

}  // namespace pare
