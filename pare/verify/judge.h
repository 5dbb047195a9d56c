#pragma once
// What each row may differ by, and whether it does by more.

#include <ATen/core/Tensor.h>

#include <string>

#include "pare/verify/metrics.h"

namespace pare {

// Which noise a row is held against. Of a pair that nothing is known of, only its own or what is usual among the rows
// (the median and six times the median distance from it), which no half of the rows can lift. Where every tensor is
// explained, rows only have to show what rounding costs in the new basis, and models that make much of a rounding do so
// in other rows each time: then that of any row.
enum class Against { own_noise, any_noise };

// What rows are held against.
struct Standard {
  double to_float64 = 1;  // how much smaller a rounding of float64 is than the one that noise is measured with
  double condition = 0;   // of the bases that a proof found
  double predicted = 0;   // the error in float64 that was predicted by who made the candidate, in this process
  Against against = Against::own_noise;
};

// One number for each row.
struct Allowed {
  at::Tensor error;    // of Rows::error
  at::Tensor root_kl;  // of the square root of Rows::kl, as linear in a difference as the error is; may be undefined
};

// To be called the same to the last digits of float64: 1e-12, or a hundred times what one rounding of every weight does
// to the reference, times what a basis of this condition makes of a rounding; where roundings were predicted, a hundred
// times their sum, or ten times what the reference makes of as many; never more than 1e-6. Where every tensor is
// explained, also what such a basis makes of a rounding of the stored type, up to 1e-5: five digits of every row.
Allowed equivalence(const Rows& noise, const Standard& standard);

// In words: which of these it is.
std::string equivalence_words(const Standard& standard);
std::string noise_words(Against against);

// To be called within noise: twice its own or the usual; ten times that of any row, and then the quantiles count too.
Allowed noise_limit(const Rows& noise, Against against);

// Each row's difference over what is allowed, the worst of error, KL and first choice: above 1 is too much. What is not
// a number is infinite.
at::Tensor excess(const Rows& rows, const Allowed& allowed);

// How far the usual row (the median) and nine of ten rows are from twice the noise of the usual row and of nine of ten:
// the larger of both, above 1 is too much. `error` and `allowed` are of the one whose error is further off.
struct UsualRows {
  double excess = 0, error = 0, allowed = 0;
  bool by_error = true;  // else by the KL
};
UsualRows usual_rows(const Rows& rows, const Rows& noise);

}  // namespace pare
