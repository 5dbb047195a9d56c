#include "pare/checkpoint/gguf_blocks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "pare/support/error.h"

namespace pare {

namespace {

// Every type gives an element as scale · level - minimum, with a scale and a minimum for a group of neighbours;
// products and sums are rounded to float32 in that order.
struct Group {
  float scale = 0, offset = 0;
};

// The levels that a type has. Those of most lie one apart.
struct Levels {
  int lowest, highest;
  std::span<const int8_t> table = {};  // those that do not
};

constexpr int8_t nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t four_bit_floats[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice their value

// One block, taken apart.
struct Parts {
  std::array<Group, 16> groups = {};
  size_t group_size = 0;  // elements
  std::array<int8_t, 256> levels = {};
  bool minus = false;  // the offset is taken away, and not added
};

float half_at(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  const uint32_t sign = static_cast<uint32_t>(bits >> 15) << 31, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 31) {
    return std::bit_cast<float>(sign | 0x7F800000U | fraction << 13);
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  }
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

// Low halves of `count` bytes, then their high halves.
void take_halves(const uint8_t* bytes, size_t count, int8_t* levels) {
  for (size_t i = 0; i < count; ++i) {
    levels[i] = static_cast<int8_t>(bytes[i] & 15);
    levels[i + count] = static_cast<int8_t>(bytes[i] >> 4);
  }
}

void add_fifth_bits(const uint8_t* bytes, int8_t* levels) {
  for (size_t i = 0; i < 32; ++i) {
    levels[i] = static_cast<int8_t>(levels[i] | (bytes[i / 8] >> (i % 8) & 1) << 4);
  }
}

// Scales and minima of six bits each, eight of both in twelve bytes: those of the last four have their upper two bits
// beside those of the first four.
void take_six_bits(const uint8_t* bytes, float scale, float minimum, Parts& parts) {
  for (size_t i = 0; i < 8; ++i) {
    const int low = i < 4 ? bytes[i] & 63 : (bytes[i + 4] & 15) | (bytes[i - 4] >> 6) << 4;
    const int high = i < 4 ? bytes[i + 4] & 63 : bytes[i + 4] >> 4 | (bytes[i] >> 6) << 4;
    parts.groups[i] = {scale * static_cast<float>(low), minimum * static_cast<float>(high)};
  }
  parts.group_size = 32;
  parts.minus = true;
}

void take_q2_k(const uint8_t* bytes, Parts& parts) {
  const uint8_t *const scales = bytes, *const pairs = bytes + 16;
  const float scale = half_at(bytes + 80), minimum = half_at(bytes + 82);
  for (size_t i = 0; i < 16; ++i) {
    parts.groups[i] = {scale * static_cast<float>(scales[i] & 15), minimum * static_cast<float>(scales[i] >> 4)};
  }
  for (size_t i = 0; i < 256; ++i) {
    parts.levels[i] = static_cast<int8_t>(pairs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3);
  }
  parts.group_size = 16;
  parts.minus = true;
}

void take_q3_k(const uint8_t* bytes, Parts& parts) {
  const uint8_t *const high = bytes, *const pairs = bytes + 32, *const scales = bytes + 96;
  const float scale = half_at(bytes + 108);
  for (size_t i = 0; i < 16; ++i) {
    const int low = scales[i % 8] >> (i / 8 * 4) & 15, upper = scales[8 + i % 4] >> (i / 4 * 2) & 3;
    parts.groups[i].scale = scale * static_cast<float>((low | upper << 4) - 32);
  }
  for (size_t i = 0; i < 256; ++i) {
    const int low = pairs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    parts.levels[i] = static_cast<int8_t>(low - ((high[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4));
  }
  parts.group_size = 16;
}

void take_q6_k(const uint8_t* bytes, Parts& parts) {
  const uint8_t *const low = bytes, *const high = bytes + 128, *const scales = bytes + 192;
  const float scale = half_at(bytes + 208);
  for (size_t i = 0; i < 16; ++i) {
    parts.groups[i].scale = scale * static_cast<float>(static_cast<int8_t>(scales[i]));
  }
  for (size_t i = 0; i < 256; ++i) {
    const size_t within = i % 128;
    const int lower = low[i / 128 * 64 + within % 64] >> (within / 64 * 4) & 15;
    const int upper = high[i / 128 * 32 + within % 32] >> (within / 32 * 2) & 3;
    parts.levels[i] = static_cast<int8_t>((lower | upper << 4) - 32);
  }
  parts.group_size = 16;
}

void take_iq4_xs(const uint8_t* bytes, Parts& parts) {
  const float scale = half_at(bytes);
  const int upper = bytes[2] | bytes[3] << 8;
  for (size_t i = 0; i < 8; ++i) {
    const int low = bytes[4 + i / 2] >> (i % 2 * 4) & 15;
    parts.groups[i].scale = scale * static_cast<float>((low | (upper >> (2 * i) & 3) << 4) - 32);
    take_halves(bytes + 8 + i * 16, 16, parts.levels.data() + i * 32);
  }
  parts.group_size = 32;
}

void take_mxfp4(const uint8_t* bytes, Parts& parts) {
  const uint32_t exponent = bytes[0];  // of half the scale, since the levels are doubled
  parts.groups[0].scale = std::bit_cast<float>(exponent < 2 ? uint32_t{0x00200000} << exponent : (exponent - 1) << 23);
  take_halves(bytes + 1, 16, parts.levels.data());
}

Parts taken_apart(GgufType type, const uint8_t* bytes) {
  Parts parts;
  parts.group_size = 32;
  int8_t* const levels = parts.levels.data();
  switch (type) {
    case GgufType::q4_0:
    case GgufType::iq4_nl:
      parts.groups[0].scale = half_at(bytes);
      take_halves(bytes + 2, 16, levels);
      break;
    case GgufType::q4_1:
      parts.groups[0] = {half_at(bytes), half_at(bytes + 2)};
      take_halves(bytes + 4, 16, levels);
      break;
    case GgufType::q5_0:
      parts.groups[0].scale = half_at(bytes);
      take_halves(bytes + 6, 16, levels);
      add_fifth_bits(bytes + 2, levels);
      break;
    case GgufType::q5_1:
      parts.groups[0] = {half_at(bytes), half_at(bytes + 2)};
      take_halves(bytes + 8, 16, levels);
      add_fifth_bits(bytes + 4, levels);
      break;
    case GgufType::q8_0:
      parts.groups[0].scale = half_at(bytes);
      std::memcpy(levels, bytes + 2, 32);
      break;
    case GgufType::q2_k:
      take_q2_k(bytes, parts);
      break;
    case GgufType::q3_k:
      take_q3_k(bytes, parts);
      break;
    case GgufType::q4_k:
      take_six_bits(bytes + 4, half_at(bytes), half_at(bytes + 2), parts);
      for (size_t i = 0; i < 4; ++i) {
        take_halves(bytes + 16 + i * 32, 32, levels + i * 64);
      }
      break;
    case GgufType::q5_k:
      take_six_bits(bytes + 4, half_at(bytes), half_at(bytes + 2), parts);
      for (size_t i = 0; i < 256; ++i) {
        const int low = bytes[48 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
        levels[i] = static_cast<int8_t>(low | (bytes[16 + i % 32] >> (i / 32) & 1) << 4);
      }
      break;
    case GgufType::q6_k:
      take_q6_k(bytes, parts);
      break;
    case GgufType::iq4_xs:
      take_iq4_xs(bytes, parts);
      break;
    case GgufType::mxfp4:
      take_mxfp4(bytes, parts);
      break;
    default:
      PARE_UNREACHABLE("a type without blocks that are read");
  }
  return parts;
}

// What the bits of a level mean: as many less than what is stored, or a table.
Levels levels_of(GgufType type) {
  switch (type) {
    case GgufType::q4_0:
      return {-8, 7};
    case GgufType::q5_0:
      return {-16, 15};
    case GgufType::q4_1:
    case GgufType::q4_k:
      return {0, 15};
    case GgufType::q5_1:
    case GgufType::q5_k:
      return {0, 31};
    case GgufType::q8_0:
      return {-128, 127};
    case GgufType::q2_k:
      return {0, 3};
    case GgufType::q3_k:
      return {-4, 3};
    case GgufType::q6_k:
      return {-32, 31};
    case GgufType::iq4_nl:
    case GgufType::iq4_xs:
      return {-127, 113, nonlinear};
    case GgufType::mxfp4:
      return {-12, 12, four_bit_floats};
    default:
      PARE_UNREACHABLE("a type without levels");
  }
}

// Those of 4 and 5 bits around zero are stored from zero on.
int moved_by(GgufType type) {
  return type == GgufType::q4_0 ? 8 : type == GgufType::q5_0 ? 16 : 0;
}

float value_of(const Parts& parts, const Group& group, float level) {
  const volatile float product = group.scale * level;  // rounded by itself: no multiply-add of one rounding
  return parts.minus ? product - group.offset : product + group.offset;
}

// The type's own sign of zero: 0 · level, without "+ 0" behind it.
float value_without_offset(const Group& group, float level) {
  return group.scale * level;
}

bool has_offset(GgufType type) {
  return type == GgufType::q4_1 || type == GgufType::q5_1 || type == GgufType::q2_k || type == GgufType::q4_k ||
         type == GgufType::q5_k;
}

// Calls `each(parts, group, level, element)` for every element.
template <typename Each>
void walk(GgufType type, std::span<const std::byte> blocks, size_t elements, const Each& each) {
  const GgufBlock& block = *gguf_block(type);
  PARE_CHECK(blocks.size() % block.bytes == 0 && blocks.size() / block.bytes * block.elements == elements,
             "whole blocks, and room for them");
  const Levels levels = levels_of(type);
  const int moved = moved_by(type);
  const auto* bytes = reinterpret_cast<const uint8_t*>(blocks.data());
  for (size_t at = 0; at < elements; at += block.elements, bytes += block.bytes) {
    const Parts parts = taken_apart(type, bytes);
    for (size_t i = 0; i < block.elements; ++i) {
      const int level =
          levels.table.empty() ? parts.levels[i] - moved : levels.table[static_cast<size_t>(parts.levels[i])];
      each(parts, parts.groups[i / parts.group_size], static_cast<float>(level), at + i);
    }
  }
}

}  // namespace

bool can_dequantise(GgufType type) {
  switch (type) {
    case GgufType::q4_0:
    case GgufType::q4_1:
    case GgufType::q5_0:
    case GgufType::q5_1:
    case GgufType::q8_0:
    case GgufType::q2_k:
    case GgufType::q3_k:
    case GgufType::q4_k:
    case GgufType::q5_k:
    case GgufType::q6_k:
    case GgufType::iq4_nl:
    case GgufType::iq4_xs:
    case GgufType::mxfp4:
      return true;
    default:
      return false;
  }
}

std::string readable_gguf_types() {
  return "F32, F16, BF16, F64, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4";
}

void dequantise(GgufType type, std::span<const std::byte> blocks, std::span<float> into) {
  const bool offset = has_offset(type);
  walk(type, blocks, into.size(), [&](const Parts& parts, const Group& group, float level, size_t element) {
    into[element] = offset ? value_of(parts, group, level) : value_without_offset(group, level);
  });
}

namespace {

// How scales are rounded: to whole numbers times a number of the block, which is a float16, or to one at once.
struct ScaleRounding {
  float units = 0;      // of a scale, in the block's number: half of it is lost
  size_t scale_at = 0;  // where the block keeps that number
  std::optional<size_t> minimum_at = {};
  bool powers_of_two = false;  // no float16 at all
};

ScaleRounding rounding_of_scales(GgufType type) {
  switch (type) {
    case GgufType::q2_k:
      return {.units = 15, .scale_at = 80, .minimum_at = 82};
    case GgufType::q3_k:
      return {.units = 32, .scale_at = 108};
    case GgufType::q4_k:
    case GgufType::q5_k:
      return {.units = 63, .scale_at = 0, .minimum_at = 2};
    case GgufType::q6_k:
      return {.units = 128, .scale_at = 208};
    case GgufType::iq4_xs:
      return {.units = 32, .scale_at = 0};
    case GgufType::mxfp4:
      return {.powers_of_two = true};
    case GgufType::q4_1:
    case GgufType::q5_1:
      return {.minimum_at = 2};
    default:
      return {};
  }
}

// Half the distance between float16s there.
float half_rounding(float value) {
  return std::max(std::abs(value) * 0x1p-11F, 0x1p-25F);
}

// What rounding a block's scales, or minima, can move a scale by: the float16 that the block has for them, and half a
// unit of the whole number that a group has. `largest` is the largest of them. An honest quantiser gives that one the
// largest whole number, or nearly, so a float16 that is larger than it has to be excuses nothing.
float scales_moved(float number, float units, float largest) {
  constexpr float smallest_normal = 0x1p-14F;
  number = std::abs(number);
  if (units == 0) {
    return half_rounding(number);
  }
  const float used = number > 0 ? largest / number : 0, lost = number < smallest_normal ? units : used;
  return lost * half_rounding(number) + std::min(number, 2 * largest / units) / 2;
}

float moved_by_scales(GgufType type, const uint8_t* block, const Parts& parts, size_t groups) {
  const ScaleRounding rounding = rounding_of_scales(type);
  if (rounding.powers_of_two) {
    return 0x1p-120F;  // there is no scale of zero
  }
  const Levels levels = levels_of(type);
  const auto most = static_cast<float>(std::max(std::abs(levels.lowest), std::abs(levels.highest)));
  float scale = 0, offset = 0;
  for (size_t g = 0; g < groups; ++g) {
    scale = std::max(scale, std::abs(parts.groups[g].scale));
    offset = std::max(offset, std::abs(parts.groups[g].offset));
  }
  const auto moved = [&](size_t at, float largest) {
    return scales_moved(half_at(block + at), rounding.units, largest);
  };
  return most * moved(rounding.scale_at, scale) + (rounding.minimum_at ? moved(*rounding.minimum_at, offset) : 0);
}

// Whether the scale is fitted once levels are chosen, and they are not chosen again.
bool fits_scale_last(GgufType type) {
  return type == GgufType::q4_0 || type == GgufType::q4_1 || type == GgufType::q5_0 || type == GgufType::q5_1;
}

// Whether a scale without a minimum is fitted to levels by weights.
bool fits_scale_alone(GgufType type) {
  return type == GgufType::q4_0 || type == GgufType::q5_0 || type == GgufType::q3_k || type == GgufType::q6_k;
}

}  // namespace

void ranges_of_blocks(GgufType type, std::span<const std::byte> blocks, std::span<BlockRange> into) {
  const Levels levels = levels_of(type);
  std::vector<int> sorted(levels.table.begin(), levels.table.end());
  std::ranges::sort(sorted);
  int gap = 1;
  for (size_t i = 1; i < sorted.size(); ++i) {
    gap = std::max(gap, sorted[i] - sorted[i - 1]);
  }
  constexpr float most_fitted = 8, most_nearest = 1, least_beyond = 16, beyond_side = 1.2F;  // steps
  constexpr float most_lost = 4;  // of a group whose scale was rounded to little or nothing
  const GgufBlock& block = *gguf_block(type);
  const auto side = static_cast<float>(std::max(std::abs(levels.lowest), std::abs(levels.highest)));
  const float most_within = fits_scale_last(type) ? std::min(most_fitted, side / 2) : most_nearest;
  const float most_beyond = fits_scale_alone(type) ? std::max(least_beyond, beyond_side * side) : least_beyond;
  const auto* bytes = reinterpret_cast<const uint8_t*>(blocks.data());
  PARE_CHECK(blocks.size() / block.bytes * block.elements == into.size(), "whole blocks, and room for them");
  for (size_t at = 0; at < into.size(); at += block.elements, bytes += block.bytes) {
    const Parts parts = taken_apart(type, bytes);
    std::array<BlockRange, 16> ranges;  // of each group
    const size_t groups = block.elements / parts.group_size;
    for (size_t g = 0; g < groups; ++g) {
      const Group& group = parts.groups[g];
      const float one = value_of(parts, group, static_cast<float>(levels.lowest)),
                  other = value_of(parts, group, static_cast<float>(levels.highest));
      ranges[g] = {std::abs(group.scale) * static_cast<float>(gap), std::min(one, other), std::max(one, other)};
    }
    const float moved = moved_by_scales(type, bytes, parts, groups);
    for (size_t g = 0; g < groups; ++g) {
      ranges[g].within = most_within * ranges[g].step + moved;
      ranges[g].outside = most_beyond * ranges[g].step + most_lost * moved;
      ranges[g].moved = moved;
      std::fill_n(into.begin() + static_cast<std::ptrdiff_t>(at + g * parts.group_size), parts.group_size, ranges[g]);
    }
  }
}

uint64_t elements_of_scale(GgufType type) {
  return type == GgufType::q2_k || type == GgufType::q3_k || type == GgufType::q6_k ? 16 : 32;
}

}  // namespace pare
