#pragma once
// What Cohere's Command R and R7B share: attention and a gated MLP side by side behind one LayerNorm without a bias,
// heads that turn in neighbouring pairs, and logits with a factor.

#include "pare/checkpoint/family_table.h"
#include "pare/checkpoint/fields.h"

namespace pare {

// Adds the model, the tensors, the heads and, before its keys, those that both have.
FamilyTable cohere_like(FamilyTable table);

// How both of them turn.
inline constexpr RopeSettings cohere_rope = {.layout = RopeLayout::interleaved, .theta = 500000};

}  // namespace pare
