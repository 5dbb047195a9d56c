// libpng reports an error by a function that must not return. It jumps back to where decoding began, over frames that
// hold nothing to be destroyed: all that is allocated belongs to the caller, or to libpng, which frees it.
// Gamma is left alone: a byte in the file is a byte of the picture, as other readers of training images have it.

#include <fmt/format.h>
#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>
#include <vector>

#include "pare/data/image.h"
#include "pare/support/error.h"

namespace pare {

namespace {

struct PngFile {
  std::span<const std::byte> rest;
  std::array<char, 200> message = {};
  std::jmp_buf back;
};

void png_error_back(png_structp reader, png_const_charp message) {
  auto* file = static_cast<PngFile*>(png_get_error_ptr(reader));
  std::strncpy(file->message.data(), message, file->message.size() - 1);
  std::longjmp(file->back, 1);
}

void png_no_warning(png_structp, png_const_charp) {}

void png_take_bytes(png_structp reader, png_bytep into, size_t count) {
  auto* file = static_cast<PngFile*>(png_get_io_ptr(reader));
  if (file->rest.size() < count) {
    png_error(reader, "it ends within its data");
  }
  std::memcpy(into, file->rest.data(), count);
  file->rest = file->rest.subspan(count);
}

struct PngReader {
  explicit PngReader(PngFile& file)
      : reader(png_create_read_struct(PNG_LIBPNG_VER_STRING, &file, png_error_back, png_no_warning)),
        info(reader != nullptr ? png_create_info_struct(reader) : nullptr) {
    if (info == nullptr) {
      png_destroy_read_struct(&reader, nullptr, nullptr);
      throw IoError("no memory to decode an image with");
    }
    png_set_read_fn(reader, &file, png_take_bytes);
  }
  ~PngReader() { png_destroy_read_struct(&reader, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  png_structp reader;
  png_infop info;
};

bool read_png_header(PngReader& png, PngFile& file) {
  if (setjmp(file.back) != 0) {
    return false;
  }
  png_read_info(png.reader, png.info);
  return true;
}

bool read_png_rows(PngReader& png, PngFile& file, bool to_rgb, png_bytep* rows) {
  if (setjmp(file.back) != 0) {
    return false;
  }
  png_set_expand(png.reader);  // palettes, and grey of fewer than 8 bits
  if (to_rgb) {
    png_set_gray_to_rgb(png.reader);
  }
  png_set_interlace_handling(png.reader);
  png_read_update_info(png.reader, png.info);
  png_read_image(png.reader, rows);
  png_read_end(png.reader, nullptr);
  return true;
}

}  // namespace

void decode_png(std::span<const std::byte> bytes, const ImageShape& shape, std::span<uint8_t> into,
                const std::string& subject) {
  PARE_CHECK(std::ssize(into) == shape.bytes(), "a place for every pixel");
  PngFile file{.rest = bytes};
  PngReader png(file);
  const auto refuse = [&] {
    throw InputError(
        fmt::format("{} cannot be decoded: {}: a damaged or incomplete file?", subject, file.message.data()));
  };
  if (!read_png_header(png, file)) {
    refuse();
  }
  const png_byte kind = png_get_color_type(png.reader, png.info);
  refuse_if(png_get_bit_depth(png.reader, png.info) > 8, "{}: 16 bits a channel, expected at most 8: convert it",
            subject);
  refuse_if((kind & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png.reader, png.info, PNG_INFO_tRNS) != 0,
            "{}: it is transparent in places, which no channel of the model holds: flatten it", subject);
  const bool coloured = (kind & PNG_COLOR_MASK_COLOR) != 0;
  check_image(png_get_image_width(png.reader, png.info), png_get_image_height(png.reader, png.info), coloured, shape,
              subject);
  const auto width = static_cast<size_t>(shape.side * shape.channels), height = static_cast<size_t>(shape.side);
  std::vector<uint8_t> pixels(width * height);
  std::vector<png_bytep> rows;
  for (size_t y = 0; y < height; ++y) {
    rows.push_back(pixels.data() + y * width);
  }
  if (!read_png_rows(png, file, !coloured && shape.channels == 3, rows.data())) {
    refuse();
  }
  for (size_t y = 0; y < height; ++y) {
    place_row(rows[y], static_cast<int64_t>(y), shape, into);
  }
}

}  // namespace pare
