#pragma once
// Text from files, plain or compressed by gzip or xz, a piece at a time. The first bytes tell which, not the name.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "pare/support/files.h"

namespace pare {

// Fills as much as it can; less than asked for means the end.
using ByteSource = std::function<size_t(std::span<std::byte>)>;

// With zlib and liblzma where the build found them, else refused. InputError for damaged and for cut files.
ByteSource open_gzip(std::shared_ptr<const InputFile> file);
ByteSource open_xz(std::shared_ptr<const InputFile> file);
// What a file holds once it is unpacked. InputError where it is packed in another way, or only points to a file.
ByteSource open_bytes(const std::filesystem::path& path);

// InputError where a text looks like UTF-16 or UTF-32, whose zeros are valid UTF-8.
void refuse_other_encoding(std::string_view text, const std::string& subject);

class TextFile {
 public:
  explicit TextFile(const std::filesystem::path& path);
  // Appends the next piece of about `bytes` bytes, which ends with a whole character. False at the end. InputError for
  // bytes that are no UTF-8, with their place in the text.
  bool read(std::string& text, size_t bytes);

 private:
  std::string subject_;
  ByteSource source_;
  uint64_t offset_ = 0;     // of what was handed out
  std::string unfinished_;  // the beginning of a character
  bool ended_ = false;
};

}  // namespace pare
