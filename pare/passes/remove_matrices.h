#pragma once
// The mechanism of papers 0 and 1: a stream that only matrices touch may have any basis, so one square matrix on it can
// be made the identity: a reader T by Θ = T, a writer P by Θ = P⁻¹. One for each stream, never two.

#include <optional>

#include "pare/passes/pass.h"
#include "pare/passes/removal.h"

namespace pare {

// Proposes, on each stream, the best conditioned of what may go; or says for every block why none can.
Proposal remove_matrices(const Recipe& model, const Removable& what, const std::optional<Budget>& budget);

}  // namespace pare
