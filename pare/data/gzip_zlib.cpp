#include <fmt/format.h>
#include <zlib.h>

#include <array>

#include "pare/data/text_file.h"
#include "pare/support/error.h"

namespace pare {

namespace {

constexpr int with_gzip_header = 15 + 16;

class Gzip {
 public:
  explicit Gzip(std::shared_ptr<const InputFile> file) : file_(std::move(file)) {
    if (inflateInit2(&stream_, with_gzip_header) != Z_OK) {
      throw IoError("no memory to decompress with");
    }
  }
  ~Gzip() { inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  size_t read(std::span<std::byte> into) {
    stream_.next_out = reinterpret_cast<Bytef*>(into.data());
    stream_.avail_out = static_cast<uInt>(into.size());
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0 && !fill()) {
        if (within_) {
          throw InputError(fmt::format("{} ends at byte {} within its data: an incomplete download?",
                                       file_->path().string(), offset_));
        }
        break;
      }
      within_ = true;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {  // another may follow, as `cat a.gz b.gz` makes them
        within_ = false;
        inflateReset(&stream_);
      } else if (result != Z_OK) {
        throw InputError(fmt::format("{} is damaged near byte {}: {}", file_->path().string(),
                                     offset_ - stream_.avail_in,
                                     stream_.msg != nullptr ? stream_.msg : "zlib gives up"));
      }
    }
    return into.size() - stream_.avail_out;
  }

 private:
  bool fill() {
    const size_t count = file_->read_at(offset_, buffer_);
    offset_ += count;
    stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    stream_.avail_in = static_cast<uInt>(count);
    return count > 0;
  }

  std::shared_ptr<const InputFile> file_;
  uint64_t offset_ = 0;
  bool within_ = false;
  z_stream stream_ = {};
  std::array<std::byte, 65536> buffer_;
};

}  // namespace

ByteSource open_gzip(std::shared_ptr<const InputFile> file) {
  return [gzip = std::make_shared<Gzip>(std::move(file))](std::span<std::byte> into) { return gzip->read(into); };
}

}  // namespace pare
