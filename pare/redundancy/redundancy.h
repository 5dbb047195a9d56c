#pragma once
// How many parameters of an Architecture exact reparametrisation makes redundant: the dimension of the set of weights
// that are the same function, at generic weights, counted symmetry by symmetry. docs/redundancy.md has the rules, and
// jacobian_rank (pare/probes) measures the same number without them.
//
// Redundant is not removable: a rotation of the residual stream is a freedom to make zeros inside dense matrices, and a
// stored file loses nothing by it.

#include <cstdint>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"

namespace pare {

struct SymmetryCount {
  std::string symmetry;  // in words
  int64_t places = 0;    // heads, norms, streams: what it is there for, each
  int64_t parameters = 0;
};

struct Redundancy {
  std::vector<SymmetryCount> symmetries;  // those that are there, in the order of docs/redundancy.md
  int64_t total = 0;
  // Why there may be more: what the rules do not count all of. The total is then a lower bound.
  std::vector<std::string> lower_bound;
  bool is_exact() const { return lower_bound.empty(); }
};

Redundancy redundancy(const Architecture& architecture);

}  // namespace pare
