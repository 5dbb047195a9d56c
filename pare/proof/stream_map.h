#pragma once
// The map Ψ of one stream, and what numbers become on its other side, with the rounding that they carry along.

#include <ATen/core/Tensor.h>

#include "pare/linear/map_fit.h"
#include "pare/proof/model_view.h"

namespace pare {

struct StreamMap {
  at::Tensor map;      // undefined: the identity
  at::Tensor inverse;  // undefined where there is none that float64 could tell
  // From the candidate's coordinates to those in which it is said how far readers moved: the reference's, or those of
  // its heads where their output matrix was absorbed.
  at::Tensor back;
  at::Tensor units;    // how large the entries of a reader usually are, one for each of the candidate's dimensions
  at::Tensor lengths;  // of its columns
  // What float64 loses where somebody multiplied by Ψ⁻¹ or solved with it, for rows of length one.
  at::Tensor lost_by_readers, lost_by_writers;
  double condition = 0;
  double off_group = 0;   // how far it is from what commutes with all that stands on the stream
  bool absorbed = false;  // a matrix that its readers took in: nothing was ever divided by it

  bool is_identity() const { return !map.defined(); }
};

StreamMap stream_map(const at::Tensor& map, const at::Tensor& units, MapGroup group);

// Rows [n, width] of a reader, as the reference's become the candidate's: rows Ψ. Their rounding is float64's and
// bounded by lengths (Cauchy and Schwarz): a product for it would cost as much as theirs.
Rounded read_through(const Rounded& rows, const StreamMap& map);
// Rows [n, width] of a writer, as the candidate's become the reference's: rows Ψᵀ.
Rounded written_through(const Rounded& rows, const StreamMap& map);
// In a basis that was found by its samples, entries smaller than usual are no better known than the others of their
// row: each rounding [n, width] is at least that of a usual entry.
at::Tensor at_least_usual(const at::Tensor& rounding, const at::Tensor& units);
constexpr double lost_in_solving = 4 * 0x1p-53;
at::Tensor solving_error(const at::Tensor& rows, const StreamMap& map, Role role);
// The residual of a reader in the reference's coordinates, infinite where they cannot be had; and what the reference
// has there, `rows` as they are, `read` as the candidate reads them.
at::Tensor pulled_back(const at::Tensor& residual, const StreamMap& map);
at::Tensor before_moving(const at::Tensor& rows, const at::Tensor& read, const StreamMap& map);

// Under a map of which every entry of the reference sees many of the candidate's, roundings of all of them add up to
// far more than right ones ever do. Rows of a writer are therefore held against the candidate's own roundings too:
// `residual` is in the reference's coordinates, with what float64 `lost` there, and the candidate stored `own`.
at::Tensor off_elsewhere(const at::Tensor& residual, const at::Tensor& lost, const at::Tensor& own,
                         const StreamMap& map);

}  // namespace pare
