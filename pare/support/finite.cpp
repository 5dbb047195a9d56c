#include "pare/support/finite.h"

#include <cstdint>

#include "pare/support/error.h"

namespace pare {

// An infinity or NaN has an exponent of ones only, so adding one at its end carries into the sign's place.
// No comparisons and no branches: compilers turn this into vector code on any machine.
template <typename Word>
static bool all_finite(std::span<const std::byte> bytes, Word exponent, Word one) {
  const Word* words = reinterpret_cast<const Word*>(bytes.data());
  Word carries = 0;
  for (size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    carries |= static_cast<Word>((words[i] & exponent) + one);
  }
  return (carries >> (8 * sizeof(Word) - 1)) == 0;
}

bool all_finite(std::span<const std::byte> bytes, FloatFormat format) {
  switch (format) {
    case FloatFormat::binary16:
      return all_finite<uint16_t>(bytes, 0x7C00, 0x0400);
    case FloatFormat::bfloat16:
      return all_finite<uint16_t>(bytes, 0x7F80, 0x0080);
    case FloatFormat::binary32:
      return all_finite<uint32_t>(bytes, 0x7F800000, 0x00800000);
    case FloatFormat::binary64:
      return all_finite<uint64_t>(bytes, 0x7FF0000000000000, 0x0010000000000000);
  }
  PARE_UNREACHABLE("a format of floats nobody reads");
}

}  // namespace pare
