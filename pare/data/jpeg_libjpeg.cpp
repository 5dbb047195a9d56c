// libjpeg reports an error by a function that must not return. It jumps back to where decoding began, over frames that
// hold nothing to be destroyed: all that is allocated belongs to the caller, or to libjpeg, which frees it.

#include <csetjmp>
#include <cstdio>
// libjpeg's header needs the one above.
#include <fmt/format.h>
#include <jpeglib.h>

#include <array>
#include <vector>

#include "pare/data/image.h"
#include "pare/support/error.h"

namespace pare {

namespace {

struct JpegErrors {
  jpeg_error_mgr manager = {};
  std::jmp_buf back;
  std::array<char, JMSG_LENGTH_MAX> message = {};
};

void jump_back(j_common_ptr decoder) {
  auto* errors = reinterpret_cast<JpegErrors*>(decoder->err);
  errors->manager.format_message(decoder, errors->message.data());
  std::longjmp(errors->back, 1);
}

// A warning is a picture with parts that were made up: a file that was cut, for one.
void take_message(j_common_ptr decoder, int level) {
  if (level < 0) {
    jump_back(decoder);
  }
}

// Up to where the picture's size is known, or all of it. False: `errors` says why not.
bool read_header(jpeg_decompress_struct& decoder, JpegErrors& errors, std::span<const std::byte> file) {
  if (setjmp(errors.back) != 0) {
    return false;
  }
  jpeg_mem_src(&decoder, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  return jpeg_read_header(&decoder, TRUE) == JPEG_HEADER_OK;
}

bool read_rows(jpeg_decompress_struct& decoder, JpegErrors& errors, const ImageShape& shape, uint8_t* row,
               std::span<uint8_t> into) {
  if (setjmp(errors.back) != 0) {
    return false;
  }
  decoder.out_color_space = shape.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&decoder);
  while (decoder.output_scanline < decoder.output_height) {
    const int64_t y = decoder.output_scanline;
    jpeg_read_scanlines(&decoder, &row, 1);
    place_row(row, y, shape, into);
  }
  jpeg_finish_decompress(&decoder);
  return true;
}

struct JpegDecoder {
  explicit JpegDecoder(JpegErrors& errors) {
    decoder.err = jpeg_std_error(&errors.manager);
    errors.manager.error_exit = jump_back;
    errors.manager.emit_message = take_message;
    jpeg_create_decompress(&decoder);
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&decoder); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  jpeg_decompress_struct decoder = {};
};

}  // namespace

void decode_jpeg(std::span<const std::byte> file, const ImageShape& shape, std::span<uint8_t> into,
                 const std::string& subject) {
  PARE_CHECK(std::ssize(into) == shape.bytes(), "a place for every pixel");
  JpegErrors errors;
  JpegDecoder held(errors);
  const auto refuse = [&] {
    throw InputError(
        fmt::format("{} cannot be decoded: {}: a damaged or incomplete file?", subject, errors.message.data()));
  };
  if (!read_header(held.decoder, errors, file)) {
    refuse();
  }
  refuse_if(held.decoder.num_components != 1 && held.decoder.num_components != 3,
            "{}: {} colour components, expected 1 or 3: convert it to RGB", subject, held.decoder.num_components);
  check_image(held.decoder.image_width, held.decoder.image_height, held.decoder.num_components == 3, shape, subject);
  std::vector<uint8_t> row(static_cast<size_t>(shape.side * shape.channels));
  if (!read_rows(held.decoder, errors, shape, row.data(), into)) {
    refuse();
  }
}

}  // namespace pare
