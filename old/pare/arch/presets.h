#pragma once
// Architectures of well-known models, from presets/*.json: a configuration without weights.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pare/arch/architecture.h"

namespace pare {

// Name and JSON text of every preset, embedded at build time.
const std::map<std::string, std::string_view, std::less<>>& preset_texts();

std::vector<std::string> preset_names();
std::optional<Architecture> find_preset(const std::string& name);

}  // namespace pare
