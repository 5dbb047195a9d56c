#pragma once
// What is known about the keys of config.json whatever the family is: which change nothing, which change everything.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

// Of a key that the family did not read. Neither: nobody knows what it does.
struct KnownKey {
  bool is_neutral = false;  // with this value the function of the model stays what it is
  std::string refusal;      // or why it does not: "num_experts is 8: ..."
};
KnownKey known_key(std::string_view key, const nlohmann::json& value);

// What a configuration of any family, known or not, asks for and pare does not have: "num_experts is 8: ...".
std::vector<std::string> unsupported_features(const nlohmann::json& config);

// A value for a message: cut where it is long.
std::string shown(const nlohmann::json& value);

}  // namespace pare
