#pragma once
// What memory can do: the same bytes read by the same threads, with nothing done to them but a sum. No loop over a
// model's weights is faster.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pare/decode/team.h"

namespace pare {

// The sum of all 64-bit words, and of the bytes behind the last of them.
uint64_t sum_of_words(std::span<const std::byte> bytes);

class PlainRead {
 public:
  // Of this memory, which outlives it: each member of a team of that size reads its part of each piece.
  PlainRead(std::vector<std::span<const std::byte>> pieces, int threads);
  // Of memory of its own on a device, as large as asked for, but at most 1 GiB: more is not faster, and may not fit.
  PlainRead(int64_t bytes, at::Device device, int threads);

  int64_t bytes() const { return bytes_; }
  // Reads all once. Hands back a sum, so that no compiler leaves it out.
  uint64_t read();

 private:
  at::Tensor own_;
  std::vector<std::span<const std::byte>> pieces_;  // none: own_ lies on a device
  int64_t bytes_ = 0;
  std::optional<Team> team_;
};

}  // namespace pare
