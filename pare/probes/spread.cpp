#include "pare/probes/spread.h"

#include <algorithm>
#include <cmath>

namespace pare {

void Spread::add(double value, const char* reason_if_not_finite) {
  if (!std::isfinite(value)) {
    add_undefined(reason_if_not_finite);
    return;
  }
  ++count;
  const double distance = value - mean;
  mean += distance / static_cast<double>(count);
  squares += distance * (value - mean);
  least = std::min(least, value);
  most = std::max(most, value);
}

void Spread::add_undefined(const std::string& why) {
  if (undefined == 0) {
    reason = why;
  }
  ++undefined;
}

std::optional<double> Spread::deviation() const {
  if (count < 2) {
    return std::nullopt;
  }
  return std::sqrt(squares / static_cast<double>(count - 1));
}

}  // namespace pare
