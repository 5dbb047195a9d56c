#pragma once
// What the blocks of GGUF's quantised types stand for. No torch here.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "pare/support/gguf.h"

namespace pare {

bool can_dequantise(GgufType type);  // F32, F16, BF16 and F64 are no blocks, and not among them
std::string readable_gguf_types();   // "F32, F16, ...", for messages

// The numbers of whole blocks, in float32, each rounded as ggml rounds it: the same bits.
void dequantise(GgufType type, std::span<const std::byte> blocks, std::span<float> into);

// What else an element could have been stored as, given the scales of its block: numbers from `low` to `high`, and
// between two neighbours among them `step` at most. And how far from it the number can have been that a quantiser made
// it of: `within`, where that number lies between `low` and `high`; else `outside`, counted from there.
//
// Most quantisers choose the scale, round it to what the type has for scales, and then take the nearest level: half a
// step, of which `within` is two. Those of Q4_0 to Q5_1 choose levels first and fit the scale to them by weighted least
// squares. Where one entry weighs more than all others, its level alone decides, which is half a level off at most: the
// scale is between half and twice what it should be, and others lie up to half of their own levels away (eight steps
// are allowed, in Q4_0 four), or as many steps beyond the ends as there are levels on one side of zero, and a fifth
// more for scales that were tried (sixteen at least). To both comes `moved`, what rounding the scales of the block
// themselves can make; to `outside` four times that, for groups whose scale is lost.
struct BlockRange {
  float step = 0, low = 0, high = 0, within = 0, outside = 0, moved = 0;
};
// One for each element.
void ranges_of_blocks(GgufType type, std::span<const std::byte> blocks, std::span<BlockRange> into);
uint64_t elements_of_scale(GgufType type);  // how many neighbours share one

}  // namespace pare
