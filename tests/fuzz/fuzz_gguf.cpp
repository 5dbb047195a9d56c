// The header of a GGUF file, and what the tokenizer and the configuration make of it. What is accepted must be true:
// every tensor lies within the file, and none within another.

#include <algorithm>

#include "pare/checkpoint/gguf_model.h"
#include "pare/support/gguf.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::string_view bytes) {
    const std::optional<pare::GgufHeader> header = pare::parse_gguf_header(bytes, bytes.size(), "fuzz");
    PARE_CHECK(header.has_value(), "all bytes are there, and more are asked for");
    std::vector<std::pair<uint64_t, uint64_t>> places;
    std::map<std::string, pare::Shape> shapes;
    for (const auto& [name, tensor] : header->tensors) {
      const pare::GgufBlock& block = *pare::gguf_block(tensor.type);
      uint64_t elements = 1;
      for (const int64_t dimension : tensor.shape) {
        elements *= static_cast<uint64_t>(dimension);
      }
      PARE_CHECK(tensor.end <= bytes.size() && tensor.end - tensor.begin == elements / block.elements * block.bytes,
                 name);
      places.emplace_back(tensor.begin, tensor.end);
      shapes[name] = tensor.shape;
    }
    std::ranges::sort(places);
    for (size_t i = 1; i < places.size(); ++i) {
      PARE_CHECK(places[i].first >= places[i - 1].second, "two tensors share bytes");
    }
    pare::gguf_config(header->metadata, shapes, "fuzz");
  });
}
