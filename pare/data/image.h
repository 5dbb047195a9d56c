#pragma once
// One picture from the bytes of a file.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pare {

// Of pictures as high as wide. One channel is grey, three are red, green and blue.
struct ImageShape {
  int64_t channels = 3, side = 0;
  int64_t bytes() const { return channels * side * side; }
  bool operator==(const ImageShape&) const = default;
};

// With libjpeg and libpng where the build found them, else refused. Fills `into` with [channels, side, side]. A grey
// picture may fill three channels; InputError for another size, for colours where one channel is asked for, for
// transparency and 16 bits, and for what is damaged or cut.
void decode_jpeg(std::span<const std::byte> file, const ImageShape& shape, std::span<uint8_t> into,
                 const std::string& subject);
void decode_png(std::span<const std::byte> file, const ImageShape& shape, std::span<uint8_t> into,
                const std::string& subject);

// What both ask of a picture before they decode it.
void check_image(int64_t width, int64_t height, bool coloured, const ImageShape& shape, const std::string& subject);

// A row of pixels, `channels` bytes each, into its place in every channel.
void place_row(const uint8_t* row, int64_t y, const ImageShape& shape, std::span<uint8_t> into);

}  // namespace pare
