#pragma once
// JSON from untrusted files: any bytes give a value or an InputError that says where and what. And JSON as text.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace pare {

// `subject` names the text in messages, usually its path. Nesting is limited, duplicate keys are an error.
nlohmann::json parse_json(std::string_view text, const std::string& subject);

// As a file has it: names that are no UTF-8 do not stop it.
std::string json_text(const nlohmann::ordered_json& json);

// For messages: on one line, whatever bytes a file has put into its texts.
std::string json_shown(const nlohmann::json& value);

}  // namespace pare
