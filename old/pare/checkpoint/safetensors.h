#pragma once
// safetensors files: an untrusted header, checked whole before anything is believed, then data read on demand.
// No torch here: bytes in, bytes out.

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/dtype.h"

namespace pare {

struct StoredTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the file
};

// nullopt when the product overflows, or when elements smaller than a byte do not fill the last one.
std::optional<uint64_t> byte_size(Dtype dtype, std::span<const int64_t> shape);

constexpr uint64_t max_safetensors_header = 100'000'000;  // set by the format

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::map<std::string, StoredTensor> tensors;
  Metadata metadata;
};

// Checks the raw text of the header of a file of `file_size` bytes. Pure, for the fuzzer and the tests.
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t file_size, const std::string& subject);

class SafetensorsFile {
 public:
  // Reads and checks the header only. Throws InputError naming the file and every problem found.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const std::map<std::string, StoredTensor>& tensors() const;
  const Metadata& metadata() const;

  // Copies bytes of a tensor's data, from `offset` within it. A file that shrank since it was opened is an InputError.
  void read(const std::string& name, uint64_t offset, std::span<std::byte> into) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;  // a copy of this object shares the open file
};

// Writes one file front to back and never holds more than the tensor at hand.
// Tensors are declared first, then written in sorted order by name; the same input gives the same bytes.
class SafetensorsWriter {
 public:
  struct Declared {
    Dtype dtype = Dtype::f32;
    std::vector<int64_t> shape;
  };
  SafetensorsWriter(const std::filesystem::path& path, std::map<std::string, Declared> tensors,
                    const Metadata& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next tensor in sorted order; may come in pieces.
  void write(const std::string& name, std::span<const std::byte> bytes);
  // Checks that everything declared was written, and syncs.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
