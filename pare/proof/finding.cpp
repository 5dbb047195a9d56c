#include "pare/proof/finding.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pare/checkpoint/dtype.h"
#include "pare/proof/proof.h"
#include "pare/support/error.h"

namespace pare {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

void note_wrong(const at::Tensor& wrong, Finding& finding) {
  finding.wrong = wrong.sum().item<int64_t>();
  const at::Tensor rows = at::nonzero(wrong.any(1)).flatten().to(at::kCPU).contiguous();
  finding.wrong_rows.assign(rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + rows.numel());
}

// How large the entries of each row are that are not zero, infinite where all are: [n, 1]. A root mean square in which
// none counts for more than four times the median. Of all of them: who knew which are looked at could hide in the rest.
at::Tensor usual_in_rows(const at::Tensor& rows) {
  const at::Tensor sizes = rows.abs();
  const at::Tensor counts = (sizes > 0).sum(1, true);
  const at::Tensor median = std::get<0>(at::where(sizes > 0, sizes, std::nan("")).nanmedian(1, true));
  const at::Tensor size = (at::minimum(sizes, median * 4).square().sum(1, true) / counts).sqrt();
  return at::where(counts > 0, size, infinite);
}

// What no gauge, no product and no type may hide, as a fraction of what is usual there: in float64 a billionth, in
// narrow types never more than a quarter. And as a fraction of the entry itself.
at::Tensor most_of_usual(const at::Tensor& unit) {
  return (0x1p12 * unit).clamp(forgiven_in_float64, 0.25);
}
at::Tensor most_of_itself(const at::Tensor& unit) {
  return (most_roundings * unit).clamp_min(0x1p-46);
}

}  // namespace

Allowance allowance(const at::Tensor& reference, const at::Tensor& candidate, Rigour rigour, const at::Tensor& unit) {
  switch (rigour) {
    case Rigour::stored:
      return {candidate, one_rounding, unit};
    case Rigour::folded:
      return {candidate + reference * most_roundings, one_rounding, unit};
    case Rigour::fitted:
      return {reference + candidate, most_roundings, unit};
  }
  PARE_UNREACHABLE("a rigour");
}

at::Tensor usual_size(const at::Tensor& matrix) {
  constexpr int64_t few = 4;  // which have no usual size
  const at::Tensor rows = usual_in_rows(matrix), columns = usual_in_rows(matrix.t()).t();
  const at::Tensor size = matrix.size(0) < few   ? rows.expand_as(matrix)
                          : matrix.size(1) < few ? columns.expand_as(matrix)
                                                 : at::minimum(rows, columns);
  return at::where(size.isfinite(), size, at::zeros_like(size));
}

Finding judged(const at::Tensor& residual, const Allowance& allowed, const at::Tensor& moved, const at::Tensor& whole) {
  Finding finding{.entries = residual.numel()};
  if (finding.entries == 0) {
    return finding;
  }
  at::Tensor size = residual.abs().flatten(0, -2), change = moved.abs().flatten(0, -2);
  const at::Tensor of = whole.abs().flatten(0, -2);
  if (allowed.off_group > 0) {
    size = size + allowed.off_group * allowed.expected.abs().flatten(0, -2);
    change = change + allowed.off_group * of;
  }
  // 0 of 0 is fine; what is not a number never is.
  const at::Tensor tolerance = allowed.rounding.expand_as(residual).flatten(0, -2).clamp_min(1e-300);
  at::Tensor roundings = at::where(tolerance.isfinite(), size / tolerance, infinite);  // none where it overflows
  if (allowed.elsewhere.defined()) {
    roundings = at::maximum(roundings, allowed.elsewhere.flatten(0, -2));
  }
  const double largest = roundings.max().item<double>();
  finding.residual = std::isnan(largest) ? infinite : largest;
  const at::Tensor unit = allowed.unit.dim() == 0 ? allowed.unit : allowed.unit.expand_as(moved).flatten(0, -2);
  const at::Tensor close = (roundings <= allowed.most) & change.isfinite();  // what cannot be had may be anything
  const at::Tensor little = change <= of * most_of_itself(unit);
  const at::Tensor far = (change <= of * (most_roundings * unit)).logical_not();
  at::Tensor right = close & little;
  if ((close & far).any().item<bool>()) {  // what is usual costs a sort, and says something only here
    const at::Tensor usual = usual_size(of);
    right = close & (little | (change <= usual * most_of_usual(unit)));
    // In narrow types a right rewrite too moves some row of thousands by so many roundings.
    const at::Tensor asked = right & far & (unit <= unit_roundoff(Dtype::f64));
    const at::Tensor stretched = asked.to(at::kDouble) * change / (at::maximum(usual, of) * unit);
    finding.stretch = stretched.nan_to_num(0, infinite).max().item<double>();
  }
  if (!right.all().item<bool>()) {
    note_wrong(right.logical_not(), finding);
  }
  const at::Tensor lengths = of.norm(2, {1}), changes = change.norm(2, {1});
  finding.size = lengths.max().item<double>();
  const at::Tensor floor = lengths.max() * 1e-3;  // a row of almost nothing is moved by no fraction of itself
  const at::Tensor fractions = at::where(changes == 0, at::zeros_like(changes), changes / at::maximum(lengths, floor));
  const at::Tensor known = fractions.nan_to_num(infinite, infinite);
  finding.moved = known.max().item<double>();
  if (finding.moved > forgiven_in_float64) {
    const at::Tensor coarsest = unit.dim() == 0 ? unit : (unit * (change > 0)).amax(1).clamp_min(0x1p-53);
    finding.moved_roundings = (at::where(known > forgiven_in_float64, known, 0.0) / coarsest).max().item<double>();
  }
  return finding;
}

void merge(Finding& all, const Finding& slice, int64_t first_row) {
  all.residual = std::max(all.residual, slice.residual);
  all.moved = std::max(all.moved, slice.moved);
  all.moved_roundings = std::max(all.moved_roundings, slice.moved_roundings);
  all.stretch = std::max(all.stretch, slice.stretch);
  all.size = std::max(all.size, slice.size);
  all.wrong += slice.wrong;
  all.entries += slice.entries;
  for (int64_t row : slice.wrong_rows) {
    all.wrong_rows.push_back(first_row + row);
  }
}

}  // namespace pare
