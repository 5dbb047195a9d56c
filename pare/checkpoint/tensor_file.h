#pragma once
// A file of named tensors that was opened and checked, whatever its format: where each lies, and its bytes on demand.
// No torch here: bytes in, bytes out.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pare/checkpoint/dtype.h"

namespace pare {

class InputFile;

struct StoredTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  // Bytes: from the start of the file, and as many as the elements have.
  uint64_t begin = 0, end = 0;
  // Elements from one to the next along each dimension, none negative. Empty: as the format of C has them, one after
  // another.
  std::vector<int64_t> strides = {};
};

// nullopt when the product overflows, or when elements smaller than a byte do not fill the last one.
std::optional<uint64_t> byte_size(Dtype dtype, std::span<const int64_t> shape);

using Metadata = std::map<std::string, std::string>;

struct TensorHeader {
  std::map<std::string, StoredTensor> tensors;
  Metadata metadata = {};
  std::string note = {};  // what is odd about the file, and was read all the same; may be empty
};

class TensorFile {
 public:
  // Reads and checks what says where the tensors are, and nothing else. Throws InputError naming the file and every
  // problem found.
  using ReadHeader = std::function<TensorHeader(const InputFile& file)>;
  TensorFile(const std::filesystem::path& path, const ReadHeader& read_header);

  const std::filesystem::path& path() const;
  uint64_t bytes() const;  // of the whole file, when it was opened
  const std::map<std::string, StoredTensor>& tensors() const;
  const Metadata& metadata() const;
  const std::string& note() const;

  // Copies bytes of a tensor's elements, one after another, from `offset` within them; whole elements where they have
  // strides. A file that shrank since it was opened is an InputError.
  void read(const std::string& name, uint64_t offset, std::span<std::byte> into) const;

  // Of the file that was opened, also where its name is another's by now. Reads all of it, once for all copies of this
  // object. InputError where it was written to since it was opened, now or before this call.
  std::string sha256() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;  // a copy of this object shares the open file
};

}  // namespace pare
