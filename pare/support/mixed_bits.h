#pragma once
// The finaliser of splitmix64 (Steele, Lea and Flood 2014): 64 random bits of a number, whatever was asked for before.

#include <cstdint>

namespace pare {

constexpr uint64_t golden_bits = 0x9e3779b97f4a7c15;  // what splitmix64 counts by

inline uint64_t mixed_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace pare
