#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "pare/checkpoint/safetensors.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"

namespace pare {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and copied as it is");

static SafetensorsHeader read_header(const InputFile& file) {
  std::string subject = quote(shown(file.path()));
  std::string begin(std::min<uint64_t>(lfs_pointer_prefix, file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(begin)));
  refuse_lfs_pointer(begin, subject);
  std::array<std::byte, 8> prefix;
  refuse_if(file.size() < prefix.size() || file.read_at(0, prefix) < prefix.size(),
            "{} has {} bytes, too few for a safetensors file: an incomplete download?", subject, file.size());
  uint64_t length = 0;
  std::memcpy(&length, prefix.data(), prefix.size());
  refuse_if(length > file.size() - prefix.size(),
            "{}: the header should have {} bytes but the file has {}: no safetensors file, or an incomplete download?",
            subject, length, file.size());
  refuse_if(length > max_safetensors_header, "{}: the header has {} bytes, the format allows {}", subject, length,
            max_safetensors_header);
  std::string text(length, '\0');
  refuse_if(file.read_at(prefix.size(), std::as_writable_bytes(std::span(text))) < length,
            "{} became shorter while its header was read", subject);
  return parse_safetensors_header(text, file.size(), subject);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : TensorFile(path, read_header) {}

}  // namespace pare
