#include "pare/support/sha256.h"

#include <fmt/format.h>

#include <vector>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/text.h"

namespace pare {

std::string sha256_of_file(const std::filesystem::path& path) {
  const InputFile file(path);
  std::vector<std::byte> piece(4 << 20);
  Sha256 hash;
  for (uint64_t offset = 0; offset < file.size();) {
    check_interrupt();
    const size_t read = file.read_at(offset, piece);
    if (read == 0) {
      throw IoError(fmt::format("{} ends at byte {} but had {} when it was opened: is it being written?",
                                quote(shown(path)), offset, file.size()));
    }
    hash.update(std::span(piece).first(read));
    offset += read;
  }
  return hash.hex();
}

}  // namespace pare
