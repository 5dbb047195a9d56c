#pragma once
// What Gemma 2 and Gemma 3 share: Gemma with norms after the sublayers too, a scale of the scores of its own, and
// layers with a window among others.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

// Adds to a table what Gemma shares with Llama, and the names of its tensors.
FamilyTable gemma_like(FamilyTable table);
// The same and the keys of Gemma 3, before those of the table, and its model.
FamilyTable gemma3_like(FamilyTable table);
// Its norms.
Architecture gemma_model(const std::optional<Norm>& qk_norm = std::nullopt);

namespace field {

extern const Field score_divisor;    // scores are divided by the root of it
extern const Field required_window;  // transformers needs one even where no layer uses it

}  // namespace field

// Where the heads have a width of their own, but must still divide the model's.
void divides_width(Config& config, Draft& draft);

}  // namespace pare
