#include "pare/data/text_file.h"

#include <fmt/format.h>

#include <array>

#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/numbers.h"

namespace pare {

static ByteSource open_plain(std::shared_ptr<const InputFile> file) {
  return [file = std::move(file), offset = uint64_t{0}](std::span<std::byte> into) mutable {
    const size_t count = file->read_at(offset, into);
    offset += count;
    return count;
  };
}

ByteSource open_bytes(const std::filesystem::path& path) {
  auto file = std::make_shared<const InputFile>(path);
  std::array<std::byte, lfs_pointer_prefix> begin = {};
  const size_t count = file->read_at(0, begin);
  const std::string_view text(reinterpret_cast<const char*>(begin.data()), count);
  refuse_lfs_pointer(text, path.string());
  if (text.starts_with("\x1F\x8B")) {
    return open_gzip(std::move(file));
  }
  if (text.starts_with(std::string_view("\xFD"
                                        "7zXZ\0",
                                        6))) {
    return open_xz(std::move(file));
  }
  for (const auto& [magic, name] : {std::pair{"BZh", "bzip2"}, {"PK\x03\x04", "zip"}, {"\x28\xB5\x2F\xFD", "zstd"}}) {
    if (text.starts_with(magic)) {
      throw InputError(
          fmt::format("{} is compressed by {}, which is not supported: gzip and xz are", path.string(), name));
    }
  }
  return open_plain(std::move(file));
}

// What is not UTF-8 but looks like another encoding of Unicode, by its mark or by its zeros; empty: nothing does. Latin
// text has a zero in every second byte of UTF-16, which is valid UTF-8 and would pass as so many control characters.
static std::string_view other_encoding(std::string_view text) {
  using namespace std::string_view_literals;
  for (const auto& [mark, name] : {std::pair{"\xFF\xFE\0\0"sv, "UTF-32LE"sv}, std::pair{"\0\0\xFE\xFF"sv, "UTF-32BE"sv},
                                   std::pair{"\xFF\xFE"sv, "UTF-16LE"sv}, std::pair{"\xFE\xFF"sv, "UTF-16BE"sv}}) {
    if (text.starts_with(mark)) {
      return name;
    }
  }
  constexpr size_t looked_at = 4096;
  text = text.substr(0, looked_at);
  std::array<size_t, 4> zeros = {};
  for (size_t i = 0; i < text.size(); ++i) {
    zeros[i % 4] += text[i] == '\0' ? 1 : 0;
  }
  const size_t even = zeros[0] + zeros[2], odd = zeros[1] + zeros[3];
  if (even + odd < 2 || 4 * (even + odd) <= text.size()) {
    return {};
  }
  if (2 * (even + odd) > text.size()) {
    return zeros[0] < zeros[3] ? "UTF-32LE" : "UTF-32BE";
  }
  return even < odd ? "UTF-16LE" : "UTF-16BE";
}

void refuse_other_encoding(std::string_view text, const std::string& subject) {
  const std::string_view other = other_encoding(text);
  refuse_if(!other.empty(), "{} looks like {}, expected UTF-8: convert it, with iconv -f {} -t UTF-8", subject, other,
            other);
}

TextFile::TextFile(const std::filesystem::path& path) : subject_(path.string()), source_(open_bytes(path)) {}

bool TextFile::read(std::string& text, size_t bytes) {
  if (ended_) {
    return false;
  }
  const size_t begin = text.size();
  text += unfinished_;
  const size_t known = text.size();
  text.resize(known + bytes);
  const size_t count = source_(std::as_writable_bytes(std::span(text).subspan(known)));
  text.resize(known + count);
  ended_ = count < bytes;
  const std::string_view piece = std::string_view(text).substr(begin);
  if (offset_ == 0) {
    refuse_other_encoding(piece, subject_);
  }
  if (const std::optional<size_t> wrong = invalid_utf8(piece, !ended_)) {
    throw InputError(fmt::format(
        "{}: the byte 0x{:02X} at {} of the text is not UTF-8: convert the file, with iconv -t UTF-8 for one", subject_,
        static_cast<unsigned char>(piece[*wrong]), with_commas(static_cast<int64_t>(offset_ + *wrong))));
  }
  unfinished_ = piece.substr(piece.size() - unfinished_utf8(piece));
  text.resize(text.size() - unfinished_.size());
  offset_ += text.size() - begin;
  return count > 0 || text.size() > begin;
}

}  // namespace pare
