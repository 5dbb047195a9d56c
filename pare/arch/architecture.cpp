#include "pare/arch/architecture.h"

#include "pare/support/error.h"

namespace pare {

std::vector<Block> expanded_blocks(const Architecture& architecture) {
  std::vector<Block> expanded;
  for (const Block& kind : architecture.blocks) {
    Block single = kind;
    single.repeat = 1;
    expanded.insert(expanded.end(), static_cast<size_t>(kind.repeat), single);
  }
  return expanded;
}

std::vector<Block> folded_blocks(const std::vector<Block>& blocks) {
  std::vector<Block> folded;
  for (const Block& block : blocks) {
    if (!folded.empty()) {
      Block same = folded.back();
      same.repeat = block.repeat;
      if (same == block) {
        folded.back().repeat += block.repeat;
        continue;
      }
    }
    folded.push_back(block);
  }
  return folded;
}

std::vector<int64_t> layer_blocks(const Architecture& architecture) {
  if (architecture.layers) {
    return *architecture.layers;
  }
  std::vector<int64_t> each_once;
  for (const Block& kind : architecture.blocks) {
    for (int64_t i = 0; i < kind.repeat; ++i) {
      each_once.push_back(static_cast<int64_t>(each_once.size()));
    }
  }
  return each_once;
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
  return side * side + (architecture.embedding.class_token ? 1 : 0);
}

}  // namespace pare
