#pragma once
// The mechanism of papers 0 and 1: a stream that only matrices touch may have any basis, so one square matrix on it can
// be made the identity: a reader T by Θ = T, a writer P by Θ = P⁻¹. One for each stream, never two.

#include <optional>

#include "pare/algebra/matrix_survey.h"
#include "pare/algebra/prediction.h"
#include "pare/algebra/proposal.h"

namespace pare {

// Proposes, on each stream, the best conditioned of what may go; or says for every block why none can.
Proposal remove_matrices(const Model& model, const RemovalQuery& what, const std::optional<Budget>& budget);

}  // namespace pare
