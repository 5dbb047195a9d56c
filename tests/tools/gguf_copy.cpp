// gguf_copy FROM TO [FACT]: every tensor of a GGUF file as pare loads it, or what its blocks could hold, into
// the safetensors of a folder; and once more row by row, which has to be the same. Our side of
// tests/conformance/gguf_files.py.

#include <ATen/ATen.h>

#include <cstdio>

#include "pare/checkpoint/gguf_model.h"
#include "pare/support/error.h"

int main(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "usage: gguf_copy FROM TO [FACT]\n");
    return 64;
  }
  try {
    const pare::GgufFact fact = pare::gguf_fact_of(count > 3 ? words[3] : "value").value();
    const pare::Weights weights = pare::weights_of(pare::open_gguf(words[1]), fact);
    for (const auto& [name, weight] : weights) {
      const at::Tensor whole = weight.load();
      for (int64_t row = 0; weight.can_load_rows() && row < weight.shape().front(); row += 3) {
        const int64_t rows = std::min<int64_t>(3, weight.shape().front() - row);
        PARE_CHECK(at::equal(weight.load_rows(row, rows), whole.narrow(0, row, rows)), name);
      }
    }
    std::filesystem::create_directories(words[2]);
    pare::write_weights(words[2], weights, 1 << 30);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
