#include "pare/checkpoint/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"

namespace pare {

namespace {

// Elements of a tensor with strides, gathered so that what lies together in the file is read together: of a transposed
// matrix some rows at once, column by column of the file.
class Gathering {
 public:
  using Read = std::function<void(uint64_t begin, std::span<std::byte> into)>;
  Gathering(const StoredTensor& tensor, Read read)
      : tensor_(tensor), size_(static_cast<uint64_t>(dtype_bits(tensor.dtype)) / 8), read_(std::move(read)) {}

  // `count` elements from the one of that number on, in the order of the dimensions from `axis` on.
  void range(size_t axis, uint64_t place, uint64_t first, uint64_t count, std::byte* into) {
    if (count == 0) {
      return;
    }
    if (axis == tensor_.shape.size()) {
      read_(place, {into, size_});
      return;
    }
    const uint64_t row = elements_from(axis + 1);
    const auto row_at = [&](uint64_t index) { return place + index * stride(axis) * size_; };
    uint64_t index = first / row, skipped = first % row;
    if (skipped > 0) {
      const uint64_t part = std::min(count, row - skipped);
      range(axis + 1, row_at(index), skipped, part, into);
      ++index;
      count -= part;
      into += part * size_;
    }
    if (const uint64_t rows = count / row; rows > 0) {
      block(axis, row_at(index), rows, into);
      index += rows;
      count -= rows * row;
      into += rows * row * size_;
    }
    range(axis + 1, row_at(index), 0, count, into);
  }

 private:
  struct Axis {
    uint64_t count, stride, apart;  // in the file, and in memory
  };

  uint64_t stride(size_t axis) const { return static_cast<uint64_t>(tensor_.strides[axis]); }

  uint64_t elements_from(size_t axis) const {
    uint64_t product = 1;
    for (; axis < tensor_.shape.size(); ++axis) {
      product *= static_cast<uint64_t>(tensor_.shape[axis]);
    }
    return product;
  }

  // Whole rows: the axis along which the file is densest becomes the innermost.
  void block(size_t axis, uint64_t place, uint64_t rows, std::byte* into) {
    std::vector<Axis> axes = {{rows, stride(axis), elements_from(axis + 1)}};
    for (size_t inner = axis + 1; inner < tensor_.shape.size(); ++inner) {
      axes.push_back({static_cast<uint64_t>(tensor_.shape[inner]), stride(inner), elements_from(inner + 1)});
    }
    std::erase_if(axes, [](const Axis& a) { return a.count == 1; });
    std::ranges::stable_sort(axes, std::greater(), &Axis::stride);
    walk(axes, place, into);
  }

  void walk(std::span<const Axis> axes, uint64_t place, std::byte* into) {
    if (axes.empty()) {
      read_(place, {into, size_});
      return;
    }
    const auto& [count, stride, apart] = axes.front();
    if (axes.size() == 1 && stride == 1 && apart == 1) {
      read_(place, {into, count * size_});
      return;
    }
    constexpr uint64_t most = 1 << 20;
    const uint64_t extent = ((count - 1) * stride + 1) * size_;
    if (axes.size() == 1 && extent <= most) {
      run_.resize(extent);
      read_(place, run_);
      for (uint64_t i = 0; i < count; ++i) {
        std::memcpy(into + i * apart * size_, run_.data() + i * stride * size_, size_);
      }
      return;
    }
    for (uint64_t i = 0; i < count; ++i) {
      walk(axes.subspan(1), place + i * stride * size_, into + i * apart * size_);
    }
  }

  const StoredTensor& tensor_;
  const uint64_t size_;  // of an element
  const Read read_;
  std::vector<std::byte> run_;
};

}  // namespace

struct TensorFile::State {
  State(const std::filesystem::path& path, const ReadHeader& read_header) : file(path), header(read_header(file)) {}
  InputFile file;
  TensorHeader header;
  mutable std::mutex hashing;
  mutable std::string hash;  // empty until someone asks
};

TensorFile::TensorFile(const std::filesystem::path& path, const ReadHeader& read_header)
    : state_(std::make_shared<const State>(path, read_header)) {}

const std::filesystem::path& TensorFile::path() const {
  return state_->file.path();
}

uint64_t TensorFile::bytes() const {
  return state_->file.size();
}

std::string TensorFile::sha256() const {
  const std::lock_guard lock(state_->hashing);
  if (state_->hash.empty()) {
    state_->hash = sha256_of(state_->file);
  }
  state_->file.check_unchanged();  // tensors may have been read since it was hashed
  return state_->hash;
}

const std::map<std::string, StoredTensor>& TensorFile::tensors() const {
  return state_->header.tensors;
}

const Metadata& TensorFile::metadata() const {
  return state_->header.metadata;
}

const std::string& TensorFile::note() const {
  return state_->header.note;
}

void TensorFile::read(const std::string& name, uint64_t offset, std::span<std::byte> into) const {
  auto found = tensors().find(name);
  PARE_CHECK(found != tensors().end(), "no tensor " + quote(name));
  const StoredTensor& tensor = found->second;
  uint64_t size = tensor.end - tensor.begin;
  PARE_CHECK(offset <= size && into.size() <= size - offset, "beyond the data of tensor " + quote(name));
  const Gathering::Read read = [&](uint64_t begin, std::span<std::byte> part) {
    refuse_if(state_->file.read_at(begin, part) < part.size(),
              "tensor {} ends at byte {} but {} is shorter now than when it was opened: is another program writing it?",
              quote(name), begin + part.size(), quote(shown(path())));
  };
  if (tensor.strides.empty()) {
    read(tensor.begin + offset, into);
    return;
  }
  const uint64_t element = static_cast<uint64_t>(dtype_bits(tensor.dtype)) / 8;
  PARE_CHECK(offset % element == 0 && into.size() % element == 0, "a part of an element of tensor " + quote(name));
  Gathering(tensor, read).range(0, tensor.begin, offset / element, into.size() / element, into.data());
}

}  // namespace pare
