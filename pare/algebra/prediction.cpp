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

int64_t runs_of(const Architecture& architecture, int64_t block) {
  const std::vector<int64_t> layers = layer_blocks(architecture);
  return std::count(layers.begin(), layers.end(), block);
}

int64_t runs_of(const Architecture& architecture, const std::string& name) {
  return name.starts_with("blocks.") ? runs_of(architecture, std::stoll(name.substr(7))) : 1;
}

double predicted_error(double roundings, Dtype dtype) {
  return unit_roundoff(dtype) * roundings;
}

double unit_roundoff(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return 0x1p-53;
    case Dtype::f32:
      return 0x1p-24;
    case Dtype::f16:
      return 0x1p-11;
    case Dtype::bf16:
      return 0x1p-8;
    default:
      fail_check(__FILE__, __LINE__, "dtype", "weights are floats");
  }
}

double narrowing_roundings(const Architecture& architecture, Dtype stored, Dtype narrower) {
  if (unit_roundoff(narrower) <= unit_roundoff(stored)) {
    return 0;
  }
  RoundingWalk walk;
  walk.step(1);  // embedding
  walk.step(1);  // head
  const std::vector<Block> blocks = expanded_blocks(architecture);
  for (int64_t n = 0; n < std::ssize(blocks); ++n) {
    walk.step(1, runs_of(architecture, n));
    if (blocks[static_cast<size_t>(n)].mlp) {
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
  return fmt::format("predicted error {:.3g} in {}, allowed {:.3g}{}", predicted_error(roundings, dtype),
                     dtype_word(dtype), error, source.empty() ? "" : fmt::format(" ({})", source));
}

}  // namespace pare
