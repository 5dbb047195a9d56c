#pragma once
// What GLM and GLM 4 share: Llama with heads of which a half turns, in neighbouring pairs, and gate and up projection
// in one matrix.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

// Adds the keys, the tensors and the heads to a table; norms behind the sublayers are bound where its model has them.
FamilyTable glm_like(FamilyTable table);

}  // namespace pare
