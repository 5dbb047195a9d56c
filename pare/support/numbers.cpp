#include "pare/support/numbers.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

namespace pare {

// Three significant digits without a loose ".0": 999, 1.5K, 124M.
static std::string scaled(double number, std::string_view suffix) {
  std::string digits = fmt::format("{:.{}f}", number, number < 99.95 ? 1 : 0);
  if (digits.ends_with(".0")) {
    digits.resize(digits.size() - 2);
  }
  return digits + std::string(suffix);
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
  double n = static_cast<double>(number);
  double size = std::abs(n);
  if (size < 1000) {
    return std::to_string(number);
  }
  // 999,950 and more would print as 1000K.
  if (size < 999.5e3) {
    return scaled(n / 1e3, "K");
  }
  if (size < 999.5e6) {
    return scaled(n / 1e6, "M");
  }
  return size < 999.5e9 ? scaled(n / 1e9, "B") : scaled(n / 1e12, "T");
}

std::string human_bytes(uint64_t bytes) {
  double n = static_cast<double>(bytes);
  if (n < 1000) {
    return std::to_string(bytes) + " B";
  }
  if (n < 999.5e3) {
    return scaled(n / 1e3, " KB");
  }
  if (n < 999.5e6) {
    return scaled(n / 1e6, " MB");
  }
  return n < 999.5e9 ? scaled(n / 1e9, " GB") : scaled(n / 1e12, " TB");
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
