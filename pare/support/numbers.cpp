#include "pare/support/numbers.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace pare {

// Three significant digits without a loose ".0", in the first unit of thousands that does not print as 1000: 1.5K,
// 124M.
static std::string scaled(double number, const std::array<const char*, 4>& units) {
  size_t unit = 0;
  for (number /= 1e3; unit + 1 < units.size() && std::abs(number) >= 999.5; ++unit) {
    number /= 1e3;
  }
  std::string digits = fmt::format("{:.{}f}", number, number < 99.95 ? 1 : 0);
  if (digits.ends_with(".0")) {
    digits.resize(digits.size() - 2);
  }
  return digits + units[unit];
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  size_t first = number < 0 ? 1 : 0;
  for (size_t place = digits.size(); place > first + 3;) {
    place -= 3;
    digits.insert(place, ",");
  }
  return digits;
}

std::string human_count(int64_t number) {
  const double n = static_cast<double>(number);
  return std::abs(n) < 1000 ? std::to_string(number) : scaled(n, {"K", "M", "B", "T"});
}

std::string human_bytes(uint64_t bytes) {
  return bytes < 1000 ? std::to_string(bytes) + " B" : scaled(static_cast<double>(bytes), {" KB", " MB", " GB", " TB"});
}

std::string human_time(double seconds) {
  if (!(seconds < 3.6e8)) {
    return "a very long time";
  }
  int64_t whole = std::llround(seconds);
  if (whole < 60) {
    return fmt::format("{} s", whole);
  }
  if (whole < 3600) {
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace pare
