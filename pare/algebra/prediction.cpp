#include "pare/algebra/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/support/error.h"

namespace pare {

void RoundingWalk::step(double condition, int64_t runs) {
  const double length = condition * static_cast<double>(runs);
  squares_ += length * length;
}

double RoundingWalk::roundings() const {
  return std::sqrt(squares_);
}

double predicted_error(double roundings, Dtype dtype) {
  return unit_roundoff(dtype) * roundings;
}

double narrowing_roundings(const Architecture& architecture, Dtype stored, Dtype narrower) {
  if (unit_roundoff(narrower) <= unit_roundoff(stored)) {
    return 0;
  }
  RoundingWalk walk;
  walk.step(1);  // embedding
  walk.step(1);  // head
  for (int64_t n = 0; n < std::ssize(architecture.blocks); ++n) {
    walk.step(1, runs_of(architecture, n));
    if (architecture.blocks[n].mlp) {
      walk.step(1, runs_of(architecture, n));
    }
  }
  return walk.roundings();
}

Budget Budget::after(double roundings) const {
  const double spent = predicted_error(roundings, dtype);
  return {std::isinf(error) ? error : std::sqrt(std::max(0.0, error * error - spent * spent)), dtype, source};
}

std::string Budget::excess(double roundings) const {
  return fmt::format("predicted error {:.3g} in {}, allowed {:.3g}{}", predicted_error(roundings, dtype), word(dtype),
                     error, source.empty() ? "" : fmt::format(" ({})", source));
}

}  // namespace pare
