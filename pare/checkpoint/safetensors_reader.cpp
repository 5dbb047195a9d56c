#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>

#include "pare/checkpoint/safetensors.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"

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

struct SafetensorsFile::State {
  explicit State(const std::filesystem::path& path) : file(path), header(read_header(file)) {}
  InputFile file;
  SafetensorsHeader header;
  mutable std::mutex hashing;
  mutable std::string hash;  // empty until someone asks
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : state_(std::make_shared<const State>(path)) {}

const std::filesystem::path& SafetensorsFile::path() const {
  return state_->file.path();
}

uint64_t SafetensorsFile::bytes() const {
  return state_->file.size();
}

std::string SafetensorsFile::sha256() const {
  const std::lock_guard lock(state_->hashing);
  if (state_->hash.empty()) {
    state_->hash = sha256_of(state_->file);
  }
  state_->file.check_unchanged();  // tensors may have been read since it was hashed
  return state_->hash;
}

const std::map<std::string, StoredTensor>& SafetensorsFile::tensors() const {
  return state_->header.tensors;
}

const Metadata& SafetensorsFile::metadata() const {
  return state_->header.metadata;
}

void SafetensorsFile::read(const std::string& name, uint64_t offset, std::span<std::byte> into) const {
  auto found = tensors().find(name);
  PARE_CHECK(found != tensors().end(), "no tensor " + quote(name));
  const StoredTensor& tensor = found->second;
  uint64_t size = tensor.end - tensor.begin;
  PARE_CHECK(offset <= size && into.size() <= size - offset, "beyond the data of tensor " + quote(name));
  refuse_if(state_->file.read_at(tensor.begin + offset, into) < into.size(),
            "tensor {} ends at byte {} but {} is shorter now than when it was opened: is another program writing it?",
            quote(name), tensor.end, quote(shown(path())));
}

}  // namespace pare
