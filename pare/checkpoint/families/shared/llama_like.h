#pragma once
// What Llama and its relatives share beside their keys: rotary positions, an RMSNorm before each sublayer, a gated MLP,
// and the names of all these.

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/family_table.h"
#include "pare/checkpoint/fields.h"

namespace pare {

// Adds to a table what they all refuse and ignore; and the model, the tensors and the heads where it has none.
FamilyTable llama_like(FamilyTable table);

// A gated MLP beside this attention, with the same norms; the one before it also at the end.
Architecture llama_model(const Attention& attention = {.norm = rms_norm()});

}  // namespace pare
