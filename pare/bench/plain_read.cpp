#include "pare/bench/plain_read.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace pare {

namespace {

// Two words are what every machine of 64 bits adds at once. Four places at a time, a line from each: memory serves
// several streams faster than one.
using Words = uint64_t __attribute__((vector_size(16)));
constexpr size_t streams = 4, words = 4, line = words * sizeof(Words);

constexpr int64_t most_own = int64_t{1} << 30;

// What one of the members reads: whole lines, and the last one the rest.
std::span<const std::byte> part_of(std::span<const std::byte> piece, size_t member, size_t members) {
  const size_t lines = piece.size() / line;
  const size_t first = lines * member / members * line;
  const size_t last = member + 1 == members ? piece.size() : lines * (member + 1) / members * line;
  return piece.subspan(first, last - first);
}

}  // namespace

uint64_t sum_of_words(std::span<const std::byte> bytes) {
  std::array<std::array<Words, words>, streams> sums = {};
  const size_t apart = bytes.size() / (streams * line) * line;
  for (size_t at = 0; at < apart; at += line) {
    for (size_t stream = 0; stream < streams; ++stream) {
      for (size_t i = 0; i < words; ++i) {
        Words read;
        std::memcpy(&read, bytes.data() + stream * apart + at + i * sizeof(Words), sizeof(Words));
        sums[stream][i] += read;
      }
    }
  }
  uint64_t total = 0;
  for (const std::array<Words, words>& stream : sums) {
    for (const Words& sum : stream) {
      total += sum[0] + sum[1];
    }
  }
  const std::byte* at = bytes.data() + streams * apart;
  const std::byte* end = bytes.data() + bytes.size();
  for (; end - at >= static_cast<std::ptrdiff_t>(sizeof(uint64_t)); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    total += word;
  }
  for (; at < end; ++at) {
    total += std::to_integer<uint64_t>(*at);
  }
  return total;
}

PlainRead::PlainRead(std::vector<std::span<const std::byte>> pieces, int threads) : pieces_(std::move(pieces)) {
  for (const std::span<const std::byte>& piece : pieces_) {
    bytes_ += std::ssize(piece);
  }
  team_.emplace(threads);
}

PlainRead::PlainRead(int64_t bytes, at::Device device, int threads) {
  constexpr int64_t number = sizeof(float);
  own_ = at::ones({std::max<int64_t>(1, std::min(bytes, most_own) / number)}, at::device(device).dtype(at::kFloat));
  bytes_ = own_.numel() * number;
  if (device.is_cpu()) {
    pieces_.emplace_back(static_cast<const std::byte*>(own_.const_data_ptr()), own_.nbytes());
    team_.emplace(threads);
  }
}

uint64_t PlainRead::read() {
  if (pieces_.empty()) {
    return static_cast<uint64_t>(own_.sum().item<float>());  // waits for the device
  }
  std::vector<uint64_t> totals(static_cast<size_t>(team_->size()));
  team_->run([&](int member) {
    uint64_t total = 0;
    for (const std::span<const std::byte>& piece : pieces_) {
      total += sum_of_words(part_of(piece, static_cast<size_t>(member), totals.size()));
    }
    totals[static_cast<size_t>(member)] = total;
  });
  uint64_t all = 0;
  for (const uint64_t total : totals) {
    all += total;
  }
  return all;
}

}  // namespace pare
