#include "pare/train/tokens.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/sha256.h"
#include "pare/support/text.h"

namespace pare {

namespace {

int64_t token_bytes(TokenFormat format) {
  switch (format) {
    case TokenFormat::bytes:
      return 1;
    case TokenFormat::uint16:
      return 2;
    case TokenFormat::uint32:
      return 4;
  }
  PARE_UNREACHABLE("a format of tokens without a size");
}

int64_t token_at(const std::byte* bytes, int64_t size) {
  int64_t token = 0;
  for (int64_t i = 0; i < size; ++i) {
    token |= static_cast<int64_t>(bytes[i]) << (8 * i);
  }
  return token;
}

TokenFile survey(const InputFile& file, TokenFormat format) {
  const int64_t size = token_bytes(format);
  const std::string subject = quote(file.path().string());
  if (file.size() == 0) {
    throw InputError(fmt::format("{} is empty: there is nothing to learn from it", subject));
  }
  if (file.size() % static_cast<uint64_t>(size) != 0) {
    throw InputError(
        fmt::format("{} has {} bytes, which are no whole number of tokens of {} bytes: another data.format, "
                    "or an incomplete download?",
                    subject, file.size(), size));
  }
  TokenFile found{.path = file.path().string(), .bytes = file.size()};
  Sha256 hash;
  std::vector<std::byte> piece(size_t{1} << 20);
  for (uint64_t at = 0; at < file.size();) {
    check_interrupt();
    const size_t read = file.read_at(at, piece);
    if (read == 0) {
      throw InputError(fmt::format("{} became shorter while it was read", subject));
    }
    hash.update(std::span(piece).first(read));
    for (size_t i = 0; i + static_cast<size_t>(size) <= read; i += static_cast<size_t>(size)) {
      found.largest = std::max(found.largest, token_at(piece.data() + i, size));
    }
    at += read;
  }
  found.sha256 = hash.hex();
  found.tokens = static_cast<int64_t>(file.size()) / size;
  return found;
}

struct OpenFiles {
  std::vector<std::unique_ptr<InputFile>> files;
  std::vector<TokenFile> found;
  TokenFormat format = TokenFormat::bytes;

  void read(int64_t begin, std::span<int64_t> into) const {
    const int64_t size = token_bytes(format);
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < files.size() && !into.empty(); ++i) {
      if (begin >= found[i].tokens) {
        begin -= found[i].tokens;
        continue;
      }
      const size_t count = std::min(into.size(), static_cast<size_t>(found[i].tokens - begin));
      bytes.resize(count * static_cast<size_t>(size));
      if (files[i]->read_at(static_cast<uint64_t>(begin * size), bytes) != bytes.size()) {
        throw InputError(fmt::format("{} became shorter while it was trained on", quote(found[i].path)));
      }
      for (size_t t = 0; t < count; ++t) {
        into[t] = token_at(bytes.data() + t * static_cast<size_t>(size), size);
      }
      into = into.subspan(count);
      begin = 0;
    }
  }
};

}  // namespace

int64_t TokenArray::size() const {
  int64_t total = 0;
  for (const TokenFile& file : files_) {
    total += file.tokens;
  }
  return total;
}

at::Tensor TokenArray::read(int64_t begin, int64_t count) const {
  PARE_CHECK(begin >= 0 && count >= 0 && begin + count <= size(), "tokens beyond the end were asked for");
  const at::Tensor tokens = at::empty({count}, at::kLong);
  read_(begin, {tokens.mutable_data_ptr<int64_t>(), static_cast<size_t>(count)});
  return tokens;
}

TokenArray open_tokens(const std::vector<std::string>& files, TokenFormat format) {
  const std::shared_ptr<OpenFiles> open = std::make_shared<OpenFiles>();
  open->format = format;
  for (const std::string& path : files) {
    for (const char* packed : {".xz", ".gz"}) {
      if (path.ends_with(packed)) {
        throw InputError(fmt::format("{} is compressed, and only plain files are read so far: unpack it first ({})",
                                     quote(path), packed == std::string(".xz") ? "xz -dk" : "gzip -dk"));
      }
    }
    open->files.push_back(std::make_unique<InputFile>(path));
    open->found.push_back(survey(*open->files.back(), format));
  }
  return TokenArray(open->found, [open](int64_t begin, std::span<int64_t> into) { open->read(begin, into); });
}

}  // namespace pare
