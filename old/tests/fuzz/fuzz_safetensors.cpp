// The header of a safetensors file. What is accepted must be true: every byte of the file in exactly one tensor.

#include "pare/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::string_view text) {
    // Seeds cover 64 bytes of data; the fuzzer can also reach larger files through the length of the header.
    const uint64_t file_size = 8 + text.size() + 64;
    uint64_t covered = 8 + text.size();
    for (const auto& [name, tensor] : pare::parse_safetensors_header(text, file_size, "fuzz").tensors) {
      PARE_CHECK(tensor.begin <= tensor.end && tensor.end <= file_size, name);
      PARE_CHECK(pare::byte_size(tensor.dtype, tensor.shape) == tensor.end - tensor.begin, name);
      covered += tensor.end - tensor.begin;
    }
    PARE_CHECK(covered == file_size, "the tensors do not tile the file");
  });
}
