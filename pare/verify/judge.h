#pragma once
// What each row may differ by, and whether it does by more.

#include <ATen/core/Tensor.h>

#include "pare/verify/metrics.h"

namespace pare {

// One number for each row.
struct Allowed {
  at::Tensor error;    // of Rows::error
  at::Tensor root_kl;  // of the square root of Rows::kl: as linear in a difference as the error is; may be undefined
};

// To be called the same to the last digits of float64: 1e-12, or ten times what one rounding of every weight does to
// the reference, or what a basis of this condition costs; never more than 1e-6. `noise` was measured by moving weights
// by 1 / `to_float64` roundings of float64.
Allowed equivalence(const Rows& noise, double to_float64, double condition);

// Twice the noise of the same row, or of what is usual among the rows: the median and six times the median distance
// from it, which no half of the rows can lift.
Allowed twice(const Rows& noise);

// Each row's difference over what is allowed, the worst of error, KL and first choice: above 1 is too much. What is not
// a number is infinite.
at::Tensor excess(const Rows& rows, const Allowed& allowed);

// Whether also the usual row (the median) is within twice the usual noise. Always so of few rows, which have no usual.
bool usually_within(const Rows& rows, const Rows& noise);

}  // namespace pare
