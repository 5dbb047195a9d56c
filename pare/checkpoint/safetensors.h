#pragma once
// safetensors files: an untrusted header, checked whole before anything is believed, then data read on demand.
// No torch here: bytes in, bytes out.

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/tensor_file.h"

namespace pare {

constexpr uint64_t max_safetensors_header = 100'000'000;  // set by the format

using SafetensorsHeader = TensorHeader;

// Checks the raw text of the header of a file of `file_size` bytes. Pure, for the fuzzer and the tests.
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t file_size, const std::string& subject);

class SafetensorsFile : public TensorFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
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
