#include "pare/support/sha256.h"

#include <vector>

#include "pare/support/files.h"
#include "pare/support/interrupt.h"

namespace pare {

std::string sha256_of(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

std::string sha256_of(const InputFile& file) {
  std::vector<std::byte> piece(4 << 20);
  Sha256 hash;
  for (uint64_t offset = 0; offset < file.size();) {
    check_interrupt();
    const size_t read = file.read_at(offset, piece);
    if (read == 0) {
      break;  // it shrank, which the check below tells
    }
    hash.update(std::span(piece).first(read));
    offset += read;
  }
  file.check_unchanged();
  return hash.hex();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  return sha256_of(InputFile(path));
}

}  // namespace pare
