#include "pare/arch/architecture.h"

#include <algorithm>
#include <numeric>

#include "pare/support/error.h"

namespace pare {

std::vector<int64_t> layer_blocks(const Architecture& architecture) {
  if (architecture.layers) {
    return *architecture.layers;
  }
  std::vector<int64_t> each_once(architecture.blocks.size());
  std::iota(each_once.begin(), each_once.end(), int64_t{0});
  return each_once;
}

int64_t runs_of(const Architecture& architecture, int64_t block) {
  return architecture.layers ? std::count(architecture.layers->begin(), architecture.layers->end(), block) : 1;
}

bool is_tabled(const Architecture& architecture, int64_t block) {
  return architecture.first_layer == FirstLayer::table &&
         (architecture.layers ? architecture.layers->front() : 0) == block;
}

int64_t token_width(const Architecture& architecture) {
  return architecture.embedding.factor.value_or(architecture.width);
}

int64_t embedding_width(const Architecture& architecture) {
  return architecture.embedding.factor_scope == FactorScope::sum ? token_width(architecture) : architecture.width;
}

int64_t patch_positions(const Architecture& architecture) {
  PARE_CHECK(architecture.embedding.patch, "only an image model has patches");
  const Patch& patch = *architecture.embedding.patch;
  const int64_t side = patch.image / patch.size;
  const Embedding& e = architecture.embedding;
  return side * side + (e.class_token ? 1 : 0) + e.registers;
}

int64_t position_rows(const Architecture& architecture) {
  const Embedding& e = architecture.embedding;
  return architecture.context + e.position_offset - (e.registers_placed ? 0 : e.registers);
}

}  // namespace pare
