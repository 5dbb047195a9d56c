#pragma once
// The mechanism of papers 0 and 1: a stream that only matrices touch may have any basis, so one square matrix on it can
// be made the identity: a reader T by Θ = T, a writer P by Θ = P⁻¹. One for each stream, never two.

#include <optional>
#include <vector>

#include "pare/passes/head_gauge.h"
#include "pare/passes/pass.h"

namespace pare {

constexpr double largest_condition = 1e9;  // beyond it, float64 itself keeps fewer than seven digits

struct Removable {
  std::vector<Target> targets;   // of these, the best conditioned on each stream
  std::optional<int64_t> block;  // only of this stored block
  bool measure_all = false;      // condition numbers also where the structure already refuses
};

// Proposes the removals, or says for every block why none is possible.
Proposal remove_matrices(const Recipe& model, const Removable& what, const std::optional<Budget>& budget);

}  // namespace pare
