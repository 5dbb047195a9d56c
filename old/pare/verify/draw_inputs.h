#pragma once
// Random inputs that two models can both read.

#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/executor.h"
#include "pare/verify/question.h"

namespace pare {

// One sequence of up to 256 tokens, the others of up to 64, never past either context. Tokens are dealt like cards, so
// that a small vocabulary is seen whole. Encoders get padding too, and token types where both models have them;
// models of images get pixels.
std::vector<Inputs> draw_inputs(const Architecture& reference, const Architecture& candidate, int64_t sequences,
                                uint64_t seed);
// The same as a question.
Question draw_question(const Architecture& reference, const Architecture& candidate, int64_t sequences, uint64_t seed);

}  // namespace pare
