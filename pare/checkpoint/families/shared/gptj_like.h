#pragma once
// What GPT-J and CodeGen share: all but how the three projections are stored.

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

// Adds to a table its model, the keys, before those of the table, and what is not of attention.
FamilyTable gptj_like(FamilyTable table);

}  // namespace pare
