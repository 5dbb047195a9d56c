#pragma once
// Zip archives whose entries are stored as they are, as torch.save writes them: where the bytes of each lie.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

namespace pare {

// Bytes that are read at any place: a file, or a text of the fuzzer. `read` fills `into` whole, or throws.
struct PlacedBytes {
  uint64_t size = 0;
  std::function<void(uint64_t offset, std::span<std::byte> into)> read;
  std::string text(uint64_t offset, uint64_t count) const;
};

struct ZipEntry {
  uint64_t begin = 0, size = 0;  // of its bytes, from the start of the file
};

// Every entry by its name, in reach and apart from all others. InputError where one is compressed, encrypted, there
// twice or over another, and where sizes do not fit the file. Zip64 too; archives in several parts are refused.
std::map<std::string, ZipEntry> read_zip(const PlacedBytes& file, const std::string& subject);

}  // namespace pare
