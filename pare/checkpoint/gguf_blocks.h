#pragma once
// What the blocks of GGUF's quantised types stand for. No torch here.

#include <cstddef>
#include <span>
#include <string>

#include "pare/support/gguf.h"

namespace pare {

bool can_dequantise(GgufType type);  // F32, F16, BF16 and F64 are no blocks, and not among them
std::string readable_gguf_types();   // "F32, F16, ...", for messages

// The numbers of whole blocks, in float32, each rounded as ggml rounds it: the same bits.
void dequantise(GgufType type, std::span<const std::byte> blocks, std::span<float> into);

// What else an element could have been stored as, given the scales of its block: numbers from `low` to `high`, and
// between two neighbours among them `step` at most. A number that a quantiser rounded to the nearest lies within half a
// step of the stored one, unless it lay outside of `low` and `high`.
struct BlockRange {
  float step = 0, low = 0, high = 0;
};
// One for each element.
void ranges_of_blocks(GgufType type, std::span<const std::byte> blocks, std::span<BlockRange> into);

}  // namespace pare
