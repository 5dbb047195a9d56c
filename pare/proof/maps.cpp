#include "pare/proof/maps.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "pare/proof/proof.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// A product that only has to be right to a few digits. Scaled, so that nothing leaves the range of float32.
at::Tensor rough_product(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.abs().max().clamp_min(1e-300), y = b.abs().max().clamp_min(1e-300);
  return at::matmul((a / x).to(at::kFloat), (b / y).to(at::kFloat)).to(at::kDouble) * x * y;
}

}  // namespace

StreamMap stream_map(const at::Tensor& map, const at::Tensor& units) {
  const at::Tensor values = at::linalg_svdvals(map);
  const double largest = values[0].item<double>(), smallest = values[-1].item<double>();
  StreamMap found{.map = map, .units = units, .lengths = map.norm(2, {0})};
  found.condition = smallest > 0 ? largest / smallest : std::numeric_limits<double>::infinity();
  constexpr double most_condition = 1e14;
  if (found.condition < most_condition) {
    found.inverse = at::linalg_inv(map);
    const at::Tensor there = map.abs(), back = found.inverse.abs();
    found.lost_by_readers = at::matmul(back, there).norm(2, {0}) * lost_in_solving;
    found.lost_by_writers = at::matmul(there, back).norm(2, {1}) * lost_in_solving;
  }
  return found;
}

Effective read_through(const Effective& rows, const StreamMap& map) {
  if (map.is_identity()) {
    return rows;
  }
  return {at::matmul(rows.value, map.map), rows.rounding.norm(2, {-1}, true) * map.lengths};
}

Effective written_through(const Effective& rows, const StreamMap& map) {
  if (map.is_identity()) {
    return rows;
  }
  return {at::matmul(rows.value, map.map.t()), rough_product(rows.rounding, map.map.abs().t())};
}

at::Tensor at_least_usual(const at::Tensor& rounding, const at::Tensor& units) {
  const at::Tensor rows = (rounding / units).square().mean(-1, true).sqrt();
  return at::maximum(rounding, rows * units);
}

at::Tensor solving_error(const at::Tensor& rows, const StreamMap& map, Role role) {
  if (map.is_identity() || !map.inverse.defined()) {
    return at::zeros_like(rows);
  }
  return rows.norm(2, {-1}, true) * (role == Role::reader ? map.lost_by_readers : map.lost_by_writers);
}

at::Tensor pulled_back(const at::Tensor& rows, const StreamMap& map) {
  return map.inverse.defined() ? rough_product(rows, map.inverse) : rows;
}

Allowance allowance(const at::Tensor& reference, const at::Tensor& candidate, Rigour rigour) {
  switch (rigour) {
    case Rigour::stored:
      return {candidate};
    case Rigour::folded:
      return {candidate + reference * most_roundings};
    case Rigour::fitted:
      return {reference + candidate, most_roundings};
  }
  PARE_UNREACHABLE("a rigour");
}

namespace {

void note_wrong(const at::Tensor& wrong, Finding& finding) {
  finding.wrong = wrong.sum().item<int64_t>();
  const at::Tensor rows = at::nonzero(wrong.flatten(1).any(1)).flatten().to(at::kCPU).contiguous();
  finding.wrong_rows.assign(rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + rows.numel());
}

// A rounding may be as large as what is rounded: of numbers that a type has no normal form for, times a gain or a gauge
// that somebody chose. No more than a quarter of its row's, or its column's, largest entry is a rounding of it.
void find_lost(const at::Tensor& change, const at::Tensor& whole, Finding& finding) {
  if (change.dim() != 2 || change.sizes() != whole.sizes() || change.size(0) < 2 || change.size(1) < 2) {
    return;
  }
  const at::Tensor size = change.abs(), of = whole.abs(), rows = of.amax(1, true);
  const at::Tensor least = at::minimum(of.amax(0, true), rows) / 4;
  note_wrong((size > least) & (size > 1e-12 * rows.median()), finding);  // which no huge row lifts
}

}  // namespace

Finding judged(const at::Tensor& residual, const Allowance& allowed, const at::Tensor& change,
               const at::Tensor& of_rows) {
  Finding finding{.entries = residual.numel()};
  if (finding.entries == 0) {
    return finding;
  }
  const at::Tensor size = residual.abs();
  constexpr double infinite = std::numeric_limits<double>::infinity();
  // 0 of 0 is fine; what is not a number never is.
  const at::Tensor tolerance = allowed.rounding.clamp_min(1e-300);
  const at::Tensor roundings = at::where(tolerance.isfinite(), size / tolerance, infinite);  // none where it overflows
  const double largest = roundings.max().item<double>();
  finding.residual = std::isnan(largest) ? infinite : largest;
  if (!(largest <= allowed.most)) {
    note_wrong((roundings <= allowed.most).logical_not(), finding);
  }
  if (finding.wrong == 0) {
    find_lost(change, of_rows, finding);
  }
  const at::Tensor lengths = of_rows.flatten(1).norm(2, {1}), changes = change.flatten(1).norm(2, {1});
  finding.size = lengths.max().item<double>();
  const at::Tensor floor = lengths.max() * 1e-3;  // a row of almost nothing is moved by no fraction of itself
  const at::Tensor fractions = at::where(changes == 0, at::zeros_like(changes), changes / at::maximum(lengths, floor));
  finding.moved = fractions.nan_to_num(infinite, infinite).max().item<double>();
  return finding;
}

void merge(Finding& all, const Finding& slice, int64_t first_row) {
  all.residual = std::max(all.residual, slice.residual);
  all.moved = std::max(all.moved, slice.moved);
  all.size = std::max(all.size, slice.size);
  all.wrong += slice.wrong;
  all.entries += slice.entries;
  for (int64_t row : slice.wrong_rows) {
    all.wrong_rows.push_back(first_row + row);
  }
}

}  // namespace pare
