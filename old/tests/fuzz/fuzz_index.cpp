// The index of a sharded model. What is accepted names plain files only, and survives being written again.

#include "pare/checkpoint/shards.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::string_view text) {
    const auto index = pare::parse_weight_index(text, "fuzz");
    for (const auto& [tensor, file] : index) {
      PARE_CHECK(std::filesystem::path(file).filename() == file && !file.empty(), file);
    }
    PARE_CHECK(pare::parse_weight_index(pare::weight_index_text(index, 0), "fuzz") == index, "a round trip");
  });
}
