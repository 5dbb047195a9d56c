#include <fmt/format.h>

#include "pare/data/image.h"
#include "pare/support/error.h"

namespace pare {

void decode_jpeg(std::span<const std::byte>, const ImageShape&, std::span<uint8_t>, const std::string& subject) {
  throw InputError(fmt::format(
      "{} is a JPEG, and this pare was built without libjpeg: install libjpeg-dev and build it again", subject));
}

}  // namespace pare
