#pragma once
// What RoBERTa and those that others trained in its way share: all but the name and the sizes.

#include "pare/checkpoint/families/shared/bert_like.h"

namespace pare {

// Adds to a table the keys and the heads, and where it has none the prefix and what they all ignore. `vocabulary`: its
// default.
FamilyTable roberta_like(FamilyTable table, int64_t vocabulary);

}  // namespace pare
