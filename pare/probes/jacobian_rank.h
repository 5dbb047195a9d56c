#pragma once
// How many directions of a model's parameters move its answer: the rank of the Jacobian of everything it says with
// respect to everything it stores, at generic weights. The directions that are left move no answer, so an exact
// reparametrisation could do without that many parameters.

#include <cstdint>

#include "pare/arch/architecture.h"

namespace pare {

constexpr double least_gap = 1e4;  // between the singular values that count and those that are rounding

struct JacobianRank {
  int64_t parameters = 0, rank = 0;
  double gap = 0;  // the smallest singular value that counts over the largest that does not

  int64_t redundant() const { return parameters - rank; }
  bool is_determined() const { return gap >= least_gap; }
};

// Neurons that are off for some inputs, and say nothing of their weights there.
bool has_switches(const Architecture& architecture);

// In float64, by automatic differentiation of the one executor over random inputs. For small models: the time is that
// of a singular value decomposition of as many columns as there are parameters.
// `known_redundant`: that symmetries prove to be there, so that no weights can show less.
JacobianRank jacobian_rank(const Architecture& architecture, uint64_t seed = 1, int64_t known_redundant = 0);

}  // namespace pare
