#pragma once
// How far a relation between numbers of the two models is from holding, and how far it may be.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pare {

// How closely numbers of the two sides must agree.
enum class Rigour {
  stored,  // as they are: the candidate's is the reference's, correctly rounded
  folded,  // one of the candidate's tensors is a product of the reference's, rounded once: float64 lost a little before
  fitted,  // between them stands a basis or a gauge, which is known no better than the numbers it was fitted to
};

// A number that was rounded correctly is off by one rounding at most. This much more is for those that were rounded to
// float32 on their way to a narrower type, which moves one in a hundred thousand to the other neighbour.
constexpr double one_rounding = 1 + 0x1p-12;
// So little of what is usual beside a number may always move.
constexpr double forgiven_in_float64 = 0x1p-30;

// How far a relation is from holding.
struct Finding {
  double residual = 0;         // in roundings
  double moved = 0;            // the largest change of a row, as a fraction of it
  double moved_roundings = 0;  // and in units of what was stored there, of those that float64 does not forgive
  // Of entries in float64 that moved by more than a few roundings of themselves: the largest change, in roundings of
  // what is usual where they stand.
  double stretch = 0;
  double size = 0;  // the length of its longest row
  int64_t wrong = 0, entries = 0;
  std::vector<int64_t> wrong_rows;

  bool holds() const { return wrong == 0; }
};

// What one rounding of everything comes to, and how many of them a relation may be off by.
struct Allowance {
  at::Tensor rounding;
  double most = one_rounding;
  at::Tensor unit;  // one rounding of a number near one, of what was stored: one number, or one for each entry
  // By how many roundings each row (or entry) is off in the candidate's own coordinates. Undefined where those are the
  // reference's.
  at::Tensor elsewhere = {};
  // What relies on a map that is a little off its group is off by that part of what is expected.
  double off_group = 0;
  at::Tensor expected = {};
};

// `reference`: what float64 loses in it. `candidate`: one rounding of what it stores, in types whose unit is `unit`.
Allowance allowance(const at::Tensor& reference, const at::Tensor& candidate, Rigour rigour, const at::Tensor& unit);
// How large the numbers beside each entry usually are: in its row or in its column, where that is less. Zeros do not
// count, and no few huge ones do.
at::Tensor usual_size(const at::Tensor& matrix);
// `moved` is the residual in the reference's own coordinates, and `whole` what the reference has there. Roundings of
// numbers that cancel may explain anything: whatever they allow, no entry moves by more than a fraction of what is
// usual where it stands, or a few roundings of itself.
Finding judged(const at::Tensor& residual, const Allowance& allowed, const at::Tensor& moved, const at::Tensor& whole);
void merge(Finding& all, const Finding& slice, int64_t first_row);

}  // namespace pare
