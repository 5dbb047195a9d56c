#pragma once
// Linear equations in the maps of all streams and the gauges of all heads at once.

#include <map>

#include "pare/linear/linear_system.h"

namespace pare {

// How large each row is, so that each counts alike.
at::Tensor one_over(const at::Tensor& rows);

struct JointSystem {
  std::vector<at::Tensor> guess;
  std::map<size_t, at::Tensor> known;  // those of the unknowns that are none
  std::vector<MatrixEquation> equations;

  void add(MatrixEquation equation, const at::Tensor& scale);  // of each row; undefined: as they are
};

// The map of a stream, as one of the unknowns.
struct JointMap {
  size_t unknown = 0;
  MatrixTerm term(MatrixTerm term) const {
    term.unknown = unknown;
    return term;
  }
};

}  // namespace pare
