#pragma once
// Random inputs that nobody can prepare a model for: their seed depends on both models' bytes.

#include <cstdint>

#include "pare/checkpoint/model_folder.h"

namespace pare {

// The first 8 bytes, big endian, of the SHA-256 of a text: a line "NAME HASH" for each file of the reference, by name,
// a line "--", the same of the candidate, and the seed as a decimal number. docs/formats.md says how to repeat it from
// a certificate. Paths have no part in it. Reads all of both models, where nobody asked for their hashes before.
uint64_t drawn_seed(const ModelFolder& reference, const ModelFolder& candidate, uint64_t seed);

}  // namespace pare
