#include "pare/proof/head_algebra.h"

#include <ATen/ATen.h>

#include <limits>

#include "pare/proof/proof.h"

namespace pare {

Rounded beside(const Rounded& matrix, const Rounded& column) {
  return joined({matrix, reshaped(column, {-1, 1})}, 1);
}

at::Tensor usual_in_heads(const at::Tensor& rounding, int64_t k) {
  const at::Tensor heads = rounding.reshape({-1, k, rounding.size(1)}).transpose(1, 2);  // [heads, n, k]
  const at::Tensor sizes = heads.square().mean(1, true).sqrt();
  const at::Tensor units = at::where(sizes > 0, sizes, at::ones_like(sizes));
  return at_least_usual(heads, units).transpose(1, 2).reshape(rounding.sizes());
}

Rounded projected(const Rounded& both, const StreamMap& in) {
  const int64_t width = both.value.size(1) - 1;
  if (in.is_identity() || width == 0) {
    return both;
  }
  const Rounded matrix = read_through({both.value.narrow(1, 0, width), both.rounding.narrow(1, 0, width)}, in);
  return beside(matrix, {both.value.select(1, width), both.rounding.select(1, width)});
}

at::Tensor projected_back(const at::Tensor& residual, const StreamMap& in) {
  const int64_t width = residual.size(1) - 1;
  if (in.is_identity() || width == 0) {
    return residual;
  }
  return at::cat({pulled_back(residual.narrow(1, 0, width), in), residual.narrow(1, width, 1)}, 1);
}

at::Tensor before_projection(const at::Tensor& both, const at::Tensor& projected, const StreamMap& in) {
  return in.absorbed ? projected_back(projected, in) : both;
}

at::Tensor solving_error_of(const at::Tensor& both, const StreamMap& in) {
  const int64_t width = both.size(1) - 1;
  if (in.is_identity() || width == 0) {
    return at::zeros({}, both.options());
  }
  // A bias has the gauge of its head, which is known as well as the stream is.
  const at::Tensor bias = both.narrow(1, width, 1).abs() * (in.inverse.defined() ? in.condition * lost_in_solving : 0);
  return at::cat({solving_error(both.narrow(1, 0, width), in, Role::reader), bias}, 1);
}

at::Tensor usual_rounding(const at::Tensor& both, const StreamMap& in, int64_t head_width, bool gauged) {
  const int64_t width = both.size(1) - 1;
  at::Tensor rounding = both;
  if (!in.is_identity() && width > 0) {
    rounding = at::cat({at_least_usual(both.narrow(1, 0, width), in.units), both.narrow(1, width, 1)}, 1);
  }
  return gauged ? usual_in_heads(rounding, head_width) : rounding;
}

static at::Tensor largest_in_heads(const at::Tensor& rows, int64_t k) {
  const at::Tensor heads = rows.reshape({-1, k, rows.size(1)});
  return heads.amax(1, true).expand_as(heads).reshape(rows.sizes());
}

at::Tensor unit_in_heads(const at::Tensor& unit, const StreamMap& in, int64_t head_width, bool gauged) {
  if (unit.dim() == 0) {
    return unit;
  }
  const int64_t width = unit.size(1) - 1;
  at::Tensor found = unit;
  if (!in.is_identity() && width > 0) {
    const at::Tensor matrix = unit.narrow(1, 0, width);
    found = at::cat({matrix.amax(1, true).expand_as(matrix), unit.narrow(1, width, 1)}, 1);
  }
  return gauged ? largest_in_heads(found, head_width) : found;
}

at::Tensor off_in_heads(const at::Tensor& residual, const at::Tensor& lost, const at::Tensor& own,
                        const at::Tensor& gauge) {
  const auto [inverse, info] = at::linalg_inv_ex(gauge);
  if (info.any().item<bool>()) {
    return at::full_like(residual, std::numeric_limits<double>::infinity());
  }
  const at::Tensor values = at::linalg_svdvals(gauge);
  const at::Tensor conditions = (values.select(1, 0) / values.select(1, -1)).reshape({-1, 1, 1});
  const at::Tensor allowed =
      on_heads(conditions * at::eye(gauge.size(1), gauge.options()), own) + on_heads(inverse.abs(), lost);
  return largest_in_heads(on_heads(inverse, residual).abs() / allowed.clamp_min(1e-300), gauge.size(1));
}

at::Tensor on_heads(const at::Tensor& matrices, const at::Tensor& rows) {
  const int64_t groups = matrices.size(0), k = matrices.size(1);
  return at::matmul(matrices.unsqueeze(1), rows.reshape({groups, -1, k, rows.size(1)})).reshape(rows.sizes());
}

at::Tensor on_heads_back(const at::Tensor& matrices, const at::Tensor& rows) {
  const auto [inverse, info] = at::linalg_inv_ex(matrices);
  const bool singular = info.any().item<bool>();
  return singular ? at::full_like(rows, std::numeric_limits<double>::infinity()) : on_heads(inverse, rows);
}

at::Tensor samples_of_group(const at::Tensor& rows, int64_t groups, int64_t k, int64_t g) {
  return rows.reshape({groups, -1, k, rows.size(1)})[g].transpose(1, 2).reshape({-1, k});
}

at::Tensor gauge_error(const at::Tensor& gauge, const at::Tensor& rows, const StreamMap& in) {
  const auto [inverse, info] = at::linalg_inv_ex(gauge);
  if (info.any().item<bool>()) {
    return at::zeros_like(rows);
  }
  const double condition = in.inverse.defined() ? in.condition : 1;
  return on_heads(gauge.abs(), on_heads(inverse.abs(), rows.abs())) * (most_roundings * lost_in_solving * condition);
}

}  // namespace pare
