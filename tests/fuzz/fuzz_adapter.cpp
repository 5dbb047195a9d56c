// adapter_config.json of a LoRA adapter. What is accepted has a finite scale for every module, and ranks above zero.

#include <cmath>

#include "pare/checkpoint/adapter.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::string_view bytes) {
    std::vector<std::string> unknown;
    const pare::AdapterSettings settings = pare::parse_adapter_config(bytes, "fuzz", &unknown);
    PARE_CHECK(std::isfinite(settings.alpha), "alpha");
    for (const int64_t rank : settings.ranks) {
      PARE_CHECK(rank > 0, "a rank of nothing");
    }
    for (const auto& [name, alpha] : settings.alphas) {
      PARE_CHECK(std::isfinite(alpha), name);
    }
  });
}
