#pragma once
// A small Architecture with the features of a large one, and with the same inequalities between its sizes: what is
// wider than the stream stays wider. Whatever symmetry the large one has, the twin has, and the rank of the twin's
// Jacobian can be computed.

#include "pare/arch/architecture.h"
#include "pare/probes/jacobian_rank.h"
#include "pare/redundancy/redundancy.h"

namespace pare {

// Every epsilon is 0.1 (epsilon is no symmetry, and a small one drowns the gap), softcaps are low enough to bend, and
// of equal blocks two are kept.
Architecture small_twin(const Architecture& architecture);

// Whether the rules of redundancy() find all that there is, as far as a twin can tell. Where they say that they count a
// lower bound, the twin shows whether it is one.
struct TwinProof {
  Architecture twin;
  Redundancy counted;     // of the twin
  JacobianRank measured;  // of the twin
  bool is_lower_bound() const { return !counted.is_exact() && counted.total <= measured.redundant(); }
  bool is_complete() const {
    return counted.is_exact() && measured.is_determined() && counted.total == measured.redundant();
  }
};

TwinProof prove_redundancy(const Architecture& architecture);

}  // namespace pare
