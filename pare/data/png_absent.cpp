#include <fmt/format.h>

#include "pare/data/image.h"
#include "pare/support/error.h"

namespace pare {

void decode_png(std::span<const std::byte>, const ImageShape&, std::span<uint8_t>, const std::string& subject) {
  throw InputError(fmt::format(
      "{} is a PNG, and this pare was built without libpng: install libpng-dev and build it again", subject));
}

}  // namespace pare
