#pragma once
// Rules that a value must obey, each with the path of what breaks it.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "pare/support/error.h"

namespace pare {

// Bounds on numbers that come from files: far above any model, far below what overflows.
constexpr int64_t most_of_anything = int64_t{1} << 31;

class Rules {
 public:
  template <class... Args>
  void require(bool holds, const std::string& path, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds) {
      problems.add(path + ": " + fmt::format(text, std::forward<Args>(args)...));
    }
  }
  void in_range(const std::string& path, int64_t value, int64_t least = 1, int64_t most = most_of_anything) {
    require(value >= least && value <= most, path, "{} is not between {} and {}", value, least, most);
  }

  Problems problems;
};

}  // namespace pare
