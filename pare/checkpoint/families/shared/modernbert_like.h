#pragma once
// What ModernBERT and its decoder share: rotary positions, of another base in layers with a window, LayerNorms behind
// the embedding and before the sublayers but the very first, gated MLPs, and a dense layer with a norm before each
// head.

#include <string_view>

#include "pare/checkpoint/family_table.h"
#include "pare/checkpoint/fields.h"

namespace pare {

struct ModernBert {
  Mask mask = Mask::full;
  int64_t itself = 1;  // whether a token counts for nothing in its window: local_attention / 2 others on a side
};

// Adds the model and the keys to a table, and the tensors that both call the same.
FamilyTable modernbert_like(FamilyTable table, const ModernBert& kind);

// That layer, and the matrix behind it.
HeadTransform modernbert_transform();
std::vector<TensorRow> modernbert_head(std::string_view layer, std::string_view matrix);

}  // namespace pare
