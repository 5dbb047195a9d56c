#include "pare/proof/stream_map.h"

#include <ATen/ATen.h>

#include <limits>

#include "pare/proof/allowed_maps.h"

namespace pare {

// A product that only has to be right to a few digits of each row and column. Scaled, so that nothing leaves the range
// of float32.
static at::Tensor rough_product(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.abs().amax(-1, true).clamp_min(1e-300), y = b.abs().amax(-2, true).clamp_min(1e-300);
  return at::matmul((a / x).to(at::kFloat), (b / y).to(at::kFloat)).to(at::kDouble) * x * y;
}

StreamMap stream_map(const at::Tensor& map, const at::Tensor& units, MapGroup group) {
  const at::Tensor values = at::linalg_svdvals(map);
  const double largest = values[0].item<double>(), smallest = values[-1].item<double>();
  StreamMap found{.map = map, .units = units, .lengths = map.norm(2, {0})};
  found.condition = smallest > 0 ? largest / smallest : std::numeric_limits<double>::infinity();
  found.off_group = distance_to(group, map, std::nullopt);
  constexpr double most_condition = 1e14;
  if (found.condition < most_condition) {
    found.inverse = found.back = at::linalg_inv(map);
    const at::Tensor there = map.abs(), back = found.inverse.abs();
    found.lost_by_readers = at::matmul(back, there).norm(2, {0}) * lost_in_solving;
    found.lost_by_writers = at::matmul(there, back).norm(2, {1}) * lost_in_solving;
  }
  return found;
}

Rounded read_through(const Rounded& rows, const StreamMap& map) {
  if (map.is_identity()) {
    return rows;
  }
  return {at::matmul(rows.value, map.map), rows.rounding.norm(2, {-1}, true) * map.lengths};
}

Rounded written_through(const Rounded& rows, const StreamMap& map) {
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

at::Tensor pulled_back(const at::Tensor& residual, const StreamMap& map) {
  if (map.is_identity()) {
    return residual;
  }
  return map.back.defined() ? rough_product(residual, map.back)
                            : at::full_like(residual, std::numeric_limits<double>::infinity());
}

at::Tensor before_moving(const at::Tensor& rows, const at::Tensor& read, const StreamMap& map) {
  return map.absorbed ? pulled_back(read, map) : rows;
}

at::Tensor off_elsewhere(const at::Tensor& residual, const at::Tensor& lost, const at::Tensor& own,
                         const StreamMap& map) {
  if (map.is_identity() || map.absorbed || !map.inverse.defined()) {
    return {};
  }
  const at::Tensor back = map.inverse.t(), off = rough_product(residual, back).abs();
  const at::Tensor usual = at::maximum(own, own.square().mean(-1, true).sqrt());
  const at::Tensor allowed = usual * map.condition + lost.norm(2, {-1}, true) * back.norm(2, {0});
  return (off / allowed.clamp_min(1e-300)).amax(-1, true);
}

}  // namespace pare
