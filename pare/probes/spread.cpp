#include "pare/probes/spread.h"

#include <algorithm>
#include <cmath>

namespace pare {

void Spread::add(double value, const char* reason_if_not_finite) {
  if (!std::isfinite(value)) {
    add_undefined(reason_if_not_finite);
    return;
  }
  Moments::add(value);
  least = std::min(least, value);
  most = std::max(most, value);
}

void Spread::add_undefined(const std::string& why) {
  if (undefined == 0) {
    reason = why;
  }
  ++undefined;
}

}  // namespace pare
