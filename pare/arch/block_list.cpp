#include "pare/arch/block_list.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "pare/arch/validate.h"

namespace pare {

void unfold_blocks(nlohmann::json& blocks) {
  if (!blocks.is_array()) {
    return;
  }
  nlohmann::json all = nlohmann::json::array();
  for (nlohmann::json entry : blocks) {
    const nlohmann::json repeat = entry.is_object() ? entry.value("repeat", nlohmann::json(1)) : nlohmann::json();
    if (!repeat.is_number_integer() || repeat < 1 || repeat > most_blocks - static_cast<int64_t>(all.size())) {
      return;
    }
    entry.erase("repeat");
    for (int64_t i = repeat.get<int64_t>(); i > 0; --i) {
      all.push_back(entry);
    }
  }
  blocks = std::move(all);
}

}  // namespace pare
