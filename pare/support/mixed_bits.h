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

// Random numbers by their number, not by their turn: none depends on what was asked for before it.
inline uint64_t mixed(uint64_t seed, uint64_t number) {
  return mixed_bits(seed * 0xd1342543de82ef95u + number * golden_bits + golden_bits);
}

// From 0 up to 1: what decides which token is drawn at a place of a sequence.
inline double number_of_token(uint64_t seed, uint64_t sequence, uint64_t place) {
  return static_cast<double>(mixed(mixed(seed, sequence), place) >> 11) * 0x1p-53;
}

}  // namespace pare
