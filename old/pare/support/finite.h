#pragma once
// Whether raw floats are all numbers: what every byte of a checkpoint goes through.

#include <cstddef>
#include <span>

namespace pare {

enum class FloatFormat { binary16, bfloat16, binary32, binary64 };

bool all_finite(std::span<const std::byte> bytes, FloatFormat format);

}  // namespace pare
