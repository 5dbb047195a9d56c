// The JSON of an Architecture. What is accepted can be counted, and gives the same value after being written.

#include "pare/arch/architecture_json.h"
#include "pare/arch/tensors.h"
#include "pare/support/json.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::string_view text) {
    const pare::Architecture read = pare::architecture_from_json(pare::parse_json(text, "fuzz"), "fuzz");
    const std::string written = pare::architecture_text(read);
    PARE_CHECK(pare::architecture_from_json(pare::parse_json(written, "fuzz"), "fuzz") == read, "a round trip");
    // The table of a model with ten thousand blocks is correct but slow.
    if (read.blocks.size() < 100) {
      pare::tensor_table(read);
    }
  });
}
