#pragma once
// Families that people hold and pare does not read, each with what stands in the way.

#include <span>
#include <string_view>

namespace pare {

struct UnreadFamily {
  std::string_view model_type, why;
};

std::span<const UnreadFamily> unread_families();  // by name

}  // namespace pare
