#pragma once
// Streams that RMSNorms join: norm(Ψ z) = Ψ norm(z) for an orthogonal Ψ, so one Ψ may stand on both sides of each norm.

#include <vector>

#include "pare/proof/side.h"

namespace pare {

// Sets of streams that may be turned together, and by nothing but a rotation. Those that something else touches, or
// whose norms have gains that are neither folded nor the same for all entries, are in none.
std::vector<std::vector<size_t>> turning_together(const ProofSide& reference, const ProofSide& candidate);

}  // namespace pare
