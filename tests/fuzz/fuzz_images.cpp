// A picture in a file: JPEG or PNG by its first bytes, as the trainer reads it. What is accepted fills every pixel.

#include <algorithm>
#include <vector>

#include "pare/data/image.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const int64_t channels : {1, 3}) {
    pare::fuzz(data, size, [channels](std::string_view text) {
      const pare::ImageShape shape{channels, 8};
      const std::span<const std::byte> file = std::as_bytes(std::span(text));
      std::vector<uint8_t> pixels[2];
      for (std::vector<uint8_t>& once : pixels) {  // what is left out shows as what was there before
        once.assign(static_cast<size_t>(shape.bytes()), &once == pixels ? 0 : 255);
        text.starts_with("\x89P") ? pare::decode_png(file, shape, once, "fuzz")
                                  : pare::decode_jpeg(file, shape, once, "fuzz");
      }
      PARE_CHECK(pixels[0] == pixels[1], "pixels that the file did not set");
    });
  }
  return 0;
}
