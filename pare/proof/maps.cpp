#include "pare/proof/maps.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "pare/proof/proof.h"
#include "pare/support/error.h"

namespace pare {

StreamMap stream_map(const at::Tensor& map, const at::Tensor& units) {
  const at::Tensor values = at::linalg_svdvals(map);
  const double largest = values[0].item<double>(), smallest = values[-1].item<double>();
  StreamMap found{.map = map, .units = units};
  found.condition = smallest > 0 ? largest / smallest : std::numeric_limits<double>::infinity();
  constexpr double most_condition = 1e14;
  if (found.condition < most_condition) {
    found.inverse = at::linalg_inv(map);
  }
  return found;
}

Effective read_through(const Effective& rows, const StreamMap& map) {
  if (map.is_identity()) {
    return rows;
  }
  return {at::matmul(rows.value, map.map), at::matmul(rows.rounding, map.map.abs())};
}

Effective written_through(const Effective& rows, const StreamMap& map) {
  if (map.is_identity()) {
    return rows;
  }
  return {at::matmul(rows.value, map.map.t()), at::matmul(rows.rounding, map.map.abs().t())};
}

at::Tensor at_least_usual(const at::Tensor& rounding, const at::Tensor& units) {
  const at::Tensor rows = (rounding / units).square().mean(-1, true).sqrt();
  return at::maximum(rounding, rows * units);
}

at::Tensor solving_error(const at::Tensor& rows, const StreamMap& map, Role role) {
  if (map.is_identity() || !map.inverse.defined()) {
    return at::zeros({}, rows.options());
  }
  const at::Tensor there = map.map.abs(), back = map.inverse.abs();
  const at::Tensor lost = role == Role::reader ? at::matmul(at::matmul(rows.abs(), back), there)
                                               : at::matmul(at::matmul(rows.abs(), back.t()), there.t());
  return lost * lost_in_solving;
}

at::Tensor pulled_back(const at::Tensor& rows, const StreamMap& map) {
  return map.inverse.defined() ? at::matmul(rows, map.inverse) : rows;
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

Finding judged(const at::Tensor& residual, const Allowance& allowed, const at::Tensor& change,
               const at::Tensor& of_rows) {
  Finding finding{.entries = residual.numel()};
  if (finding.entries == 0) {
    return finding;
  }
  const at::Tensor size = residual.abs();
  const at::Tensor rounding = allowed.rounding.expand_as(size);
  constexpr double infinite = std::numeric_limits<double>::infinity();
  // 0 of 0 is fine; what is not a number never is.
  const at::Tensor roundings =
      at::where(size == 0, at::zeros_like(size), size / rounding).nan_to_num(infinite, infinite);
  const at::Tensor wrong = roundings > allowed.most;
  finding.residual = roundings.max().item<double>();
  finding.wrong = wrong.sum().item<int64_t>();
  finding.size = of_rows.abs().max().item<double>();
  if (finding.wrong > 0) {
    const at::Tensor rows = at::nonzero(wrong.flatten(1).any(1)).flatten().to(at::kCPU).contiguous();
    finding.wrong_rows.assign(rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + rows.numel());
  }
  const at::Tensor lengths = of_rows.flatten(1).norm(2, {1}), changes = change.flatten(1).norm(2, {1});
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
