#include "pare/arch/presets.h"

#include "pare/arch/architecture_json.h"
#include "pare/support/json.h"

namespace pare {

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, text] : preset_texts()) {
    names.push_back(name);
  }
  return names;
}

std::optional<Architecture> find_preset(const std::string& name) {
  const auto found = preset_texts().find(name);
  if (found == preset_texts().end()) {
    return std::nullopt;
  }
  const std::string subject = "preset " + name;
  return architecture_from_json(parse_json(found->second, subject), subject);
}

}  // namespace pare
