#pragma once
// Architectures of well-known models, from presets/*.json: a configuration without weights.

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace pare {

// Name and JSON text of every preset, embedded at build time.
const std::map<std::string, std::string_view, std::less<>>& preset_texts();

}  // namespace pare
