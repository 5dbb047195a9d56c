// Files of torch.save, and the pickles in them. What is accepted lies within the file, and no tensor has more bytes
// than it.

#include <cstring>

#include "pare/checkpoint/pickle.h"
#include "pare/checkpoint/pytorch_file.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pare::fuzz(data, size, [](std::string_view bytes) {
    const pare::Pickle pickle = pare::parse_pickle(bytes, "fuzz");
    PARE_CHECK(pickle.end <= bytes.size() && pickle.root < pickle.values.size(), "a pickle beyond its bytes");
  });
  return pare::fuzz(data, size, [](std::string_view bytes) {
    const pare::PlacedBytes source{bytes.size(), [bytes](uint64_t offset, std::span<std::byte> into) {
                                     PARE_CHECK(offset <= bytes.size() && into.size() <= bytes.size() - offset, "read");
                                     if (!into.empty()) {
                                       std::memcpy(into.data(), bytes.data() + offset, into.size());
                                     }
                                   }};
    for (const auto& [name, tensor] : pare::parse_pytorch(source, "fuzz").tensors) {
      PARE_CHECK(tensor.begin <= tensor.end && tensor.begin <= bytes.size(), name);
      PARE_CHECK(tensor.end - tensor.begin <= bytes.size(), name);
      PARE_CHECK(!tensor.strides.empty() || tensor.end <= bytes.size(), name);
      PARE_CHECK(pare::byte_size(tensor.dtype, tensor.shape) == tensor.end - tensor.begin, name);
    }
  });
}
