#include "pare/data/image.h"

#include "pare/support/error.h"

namespace pare {

void check_image(int64_t width, int64_t height, bool coloured, const ImageShape& shape, const std::string& subject) {
  refuse_if(width != shape.side || height != shape.side,
            "{}: {} x {} pixels, expected {} x {}: cut or scale the images first", subject, width, height, shape.side,
            shape.side);
  refuse_if(coloured && shape.channels == 1,
            "{}: it has colours, and the model reads one channel: make the images grey first, or use three channels",
            subject);
  refuse_if(shape.channels != 1 && shape.channels != 3, "{}: a picture has 1 or 3 channels, but the model reads {}",
            subject, shape.channels);
}

void place_row(const uint8_t* row, int64_t y, const ImageShape& shape, std::span<uint8_t> into) {
  for (int64_t c = 0; c < shape.channels; ++c) {
    uint8_t* place = into.data() + (c * shape.side + y) * shape.side;
    for (int64_t x = 0; x < shape.side; ++x) {
      place[x] = row[x * shape.channels + c];
    }
  }
}

}  // namespace pare
