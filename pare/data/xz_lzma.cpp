#include <fmt/format.h>
#include <lzma.h>

#include <array>

#include "pare/data/text_file.h"
#include "pare/support/error.h"

namespace pare {

namespace {

constexpr uint64_t most_memory = 1'000'000'000;  // xz -9 needs 65 MB

std::string meaning(lzma_ret result) {
  switch (result) {
    case LZMA_MEMLIMIT_ERROR:
      return "it asks for more than 1 GB to decompress with";
    case LZMA_BUF_ERROR:
      return "it ends within its data: an incomplete download?";
    case LZMA_FORMAT_ERROR:
    case LZMA_OPTIONS_ERROR:
      return "it is of an unknown form";
    default:
      return "it is damaged";
  }
}

class Xz {
 public:
  explicit Xz(std::shared_ptr<const InputFile> file) : file_(std::move(file)) {
    if (lzma_stream_decoder(&stream_, most_memory, LZMA_CONCATENATED) != LZMA_OK) {
      throw IoError("no memory to decompress with");
    }
  }
  ~Xz() { lzma_end(&stream_); }
  Xz(const Xz&) = delete;
  Xz& operator=(const Xz&) = delete;

  size_t read(std::span<std::byte> into) {
    stream_.next_out = reinterpret_cast<uint8_t*>(into.data());
    stream_.avail_out = into.size();
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0) {
        const size_t count = file_->read_at(offset_, buffer_);
        offset_ += count;
        stream_.next_in = reinterpret_cast<const uint8_t*>(buffer_.data());
        stream_.avail_in = count;
      }
      const lzma_ret result = lzma_code(&stream_, stream_.avail_in == 0 ? LZMA_FINISH : LZMA_RUN);
      ended_ = result == LZMA_STREAM_END;
      if (result != LZMA_OK && !ended_) {
        throw InputError(fmt::format("{} cannot be decompressed near byte {}: {}", file_->path().string(),
                                     offset_ - stream_.avail_in, meaning(result)));
      }
    }
    return into.size() - stream_.avail_out;
  }

 private:
  std::shared_ptr<const InputFile> file_;
  uint64_t offset_ = 0;
  bool ended_ = false;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  std::array<std::byte, 65536> buffer_;
};

}  // namespace

ByteSource open_xz(std::shared_ptr<const InputFile> file) {
  return [xz = std::make_shared<Xz>(std::move(file))](std::span<std::byte> into) { return xz->read(into); };
}

}  // namespace pare
