#pragma once
// What OLMo 2 and 3 share: Llama with RMSNorms behind the sublayers alone, and over all queries and all keys of a
// layer.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

// Adds the model, the tensors, the heads and, before its keys, those that both have.
FamilyTable olmo2_like(FamilyTable table);

}  // namespace pare
