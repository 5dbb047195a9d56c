#pragma once
// Rotary positions: how far each plane of a head turns, and which dimensions make a plane.

#include <cstdint>
#include <optional>
#include <vector>

#include "pare/arch/kinds.h"

namespace pare {

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::linear;
  double factor = 1;
  double original_context = 0;                    // dynamic, yarn, longrope, llama3
  double attention_factor = 1;                    // yarn, longrope: multiplies cosines and sines
  double beta_fast = 32, beta_slow = 1;           // yarn
  bool truncate = true;                           // yarn: round the ends of the ramp to whole dimensions
  double low_frequency = 1, high_frequency = 4;   // llama3
  std::vector<double> short_factor, long_factor;  // longrope: one per rotated plane
  bool operator==(const RopeScaling&) const = default;
};

struct Rope {
  double theta = 10000;
  int64_t width = 0;  // how many of a head's dimensions turn
  RopeLayout layout = RopeLayout::half;
  std::optional<RopeScaling> scaling;
  bool operator==(const Rope&) const = default;
};

}  // namespace pare
