#pragma once
// Numbers of 16 bits, one at a time.

#include <bit>
#include <cstdint>

namespace pare {

inline float from_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Shifted into place, its exponent is 112 too small, which one product mends, also of subnormal numbers; infinity and
// what is no number have an exponent of their own.
inline float from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, rest = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112f);
  return std::bit_cast<float>(sign | (rest >= 0x0f800000u ? rest | 0x7f800000u : scaled));
}

}  // namespace pare
