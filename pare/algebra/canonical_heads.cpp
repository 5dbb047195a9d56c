#include "pare/algebra/canonical_heads.h"

#include <ATen/ATen.h>

#include <tuple>

namespace pare {

namespace {

constexpr double least_rank = 1e-13;  // the last singular value over the first: below it is rounding

// +1 or -1 for each column: what makes its largest entry positive.
at::Tensor signs_of(const at::Tensor& columns) {
  const at::Tensor largest = columns.gather(-2, columns.abs().argmax(-2, /*keepdim=*/true));
  return at::where(largest < 0, -1.0, 1.0);
}

// A D and B D⁻ᵀ, where that loses no more than a digit or two: row by row as good as the rows that it is made of. QR
// and singular values are as good as the largest row, and a small row beside it is then another one.
HeadSides by_rows(const HeadSides& sides, const at::Tensor& gauge, const HeadSides& otherwise) {
  constexpr double most_condition = 64;
  const at::Tensor columns = gauge.norm(2, {-2}, /*keepdim=*/true);
  const at::Tensor rows = (gauge / columns).norm(2, {-1}, /*keepdim=*/true);
  const at::Tensor values = at::linalg_svdvals(at::nan_to_num(gauge / columns / rows, 0.0, 0.0, 0.0));
  const at::Tensor good = (values.select(-1, 0) <= values.select(-1, -1) * most_condition).view({-1, 1, 1});
  const at::Tensor safe = at::where(good, gauge, at::eye(gauge.size(-1), gauge.options()));
  const at::Tensor left = at::matmul(sides.left, safe);
  const at::Tensor right = at::linalg_solve(safe, sides.right.mT()).mT();
  return {at::where(good, left, otherwise.left), at::where(good, right, otherwise.right)};
}

HeadSides balanced(const HeadSides& sides) {
  const int64_t k = sides.left.size(-1);
  if (sides.left.size(-2) < k || sides.right.size(-2) < k) {
    return sides;  // no such product has rank k
  }
  // The product first: large columns of one side may meet small ones of the other, and factored by itself the large
  // one's rounding would be larger than all of the small one.
  const auto [left_q, left_r] = at::linalg_qr(sides.left);
  const auto [right_q, product] = at::linalg_qr(at::matmul(sides.right, left_r.mT()));
  const auto [v, s, ut] = at::linalg_svd(product, /*full_matrices=*/false);
  const at::Tensor root = s.sqrt().unsqueeze(-2), turned = ut.mT() * root;
  const HeadSides factored{at::matmul(left_q, turned), at::matmul(right_q, v * root)};
  const HeadSides result = by_rows(sides, at::linalg_solve_triangular(left_r, turned, /*upper=*/true), factored);
  const at::Tensor signs = signs_of(result.left);
  const at::Tensor whole = (s.select(-1, k - 1) > least_rank * s.select(-1, 0)).view({-1, 1, 1});
  return {at::where(whole, result.left * signs, sides.left), at::where(whole, result.right * signs, sides.right)};
}

// The right side's principal axes; the left, where there is one, goes along.
HeadSides on_principal_axes(const HeadSides& sides) {
  const at::Tensor r = std::get<1>(at::linalg_qr(sides.right, "r"));
  at::Tensor axes = std::get<2>(at::linalg_svd(r, /*full_matrices=*/true)).mT();
  axes = axes * signs_of(at::matmul(sides.right, axes));
  return {sides.left.defined() ? at::matmul(sides.left, axes) : sides.left, at::matmul(sides.right, axes)};
}

at::Tensor lengths_of(const at::Tensor& planes) {
  return planes.abs().square().sum(-2, /*keepdim=*/true).sqrt();
}

// A plane that turns is a complex number: queries times z and keys times 1 / z̄ give the same scores. Both sides get one
// length, and the largest entry of the keys is real and positive.
HeadSides turned_planes(const HeadSides& sides, ScoreGauge gauge) {
  const at::Tensor largest = sides.right.gather(-2, sides.right.abs().argmax(-2, /*keepdim=*/true));
  const at::Tensor size = largest.abs();
  const at::Tensor turn = at::where(size > 0, largest.conj() / at::where(size > 0, size, 1.0), 1.0);
  if (gauge == ScoreGauge::orthogonal) {
    return {sides.left.defined() ? sides.left * turn : sides.left, sides.right * turn};
  }
  const at::Tensor left = lengths_of(sides.left), right = lengths_of(sides.right);
  const at::Tensor both = (left > 0).logical_and(right > 0);
  const at::Tensor scale = at::where(both, (right / at::where(both, left, 1.0)).sqrt(), 1.0);
  return {sides.left * turn * scale, sides.right * turn / scale};
}

at::Tensor as_planes(const Rope& rope, const at::Tensor& side) {
  const int64_t half = rope.width / 2;
  const at::Tensor turned = side.narrow(-1, 0, rope.width);
  const at::Tensor pairs =
      rope.layout == RopeLayout::half ? turned.unflatten(-1, {2, half}).mT() : turned.unflatten(-1, {half, 2});
  return at::complex(pairs.select(-1, 0), pairs.select(-1, 1));
}

at::Tensor from_planes(const Rope& rope, const at::Tensor& planes) {
  const at::Tensor pairs = at::view_as_real(planes.resolve_conj());
  return rope.layout == RopeLayout::half ? pairs.mT().flatten(-2) : pairs.flatten(-2);
}

template <class Function>
HeadSides for_both(const HeadSides& sides, Function function) {
  return {sides.left.defined() ? function(sides.left) : sides.left, function(sides.right)};
}

}  // namespace

HeadSides canonical_values(const HeadSides& sides) {
  return balanced(sides);
}

HeadSides canonical_scores(const Attention& t, ScoreGauge gauge, const HeadSides& sides) {
  const auto unturned = [gauge](const HeadSides& part) {
    return gauge == ScoreGauge::general ? balanced(part) : on_principal_axes(part);
  };
  if (!t.rope) {
    return unturned(sides);
  }
  const Rope& rope = *t.rope;
  const HeadSides planes =
      turned_planes(for_both(sides, [&](const at::Tensor& side) { return as_planes(rope, side); }), gauge);
  const HeadSides turned = for_both(planes, [&](const at::Tensor& side) { return from_planes(rope, side); });
  const int64_t free = t.head_width - rope.width;
  if (free == 0) {
    return turned;
  }
  const HeadSides rest =
      unturned(for_both(sides, [&](const at::Tensor& side) { return side.narrow(-1, rope.width, free); }));
  return {turned.left.defined() ? at::cat({turned.left, rest.left}, -1) : turned.left,
          at::cat({turned.right, rest.right}, -1)};
}

at::Tensor canonical_order(const Attention& t, const HeadSides& values) {
  const int64_t share = t.heads / t.kv_heads;
  // |A Bᵀ|² = tr(AᵀA BᵀB), with k x k matrices.
  const at::Tensor left = at::matmul(values.left.mT(), values.left).unsqueeze(1);
  const at::Tensor parts = values.right.unflatten(-2, {share, -1});
  const at::Tensor right = at::matmul(parts.mT(), parts);
  const at::Tensor squares = (left * right).sum({-1, -2});  // [groups, share]
  const at::Tensor groups = at::argsort(squares.sum(1), /*stable=*/true, 0, /*descending=*/true);
  const at::Tensor inside = at::argsort(squares, /*stable=*/true, 1, /*descending=*/true);
  return (groups.unsqueeze(1) * share + inside.index_select(0, groups)).flatten();
}

at::Tensor side_of(const Attention& t, const at::Tensor& matrix, const at::Tensor& bias) {
  const at::Tensor rows = bias.defined() ? at::cat({matrix, bias.unsqueeze(1)}, 1) : matrix;
  const int64_t columns = rows.size(1);
  return rows.reshape({t.kv_heads, -1, t.head_width, columns}).transpose(2, 3).reshape({t.kv_heads, -1, t.head_width});
}

at::Tensor stored_of(const at::Tensor& side, int64_t columns) {
  return side.unflatten(1, {-1, columns}).mT().reshape({-1, columns});
}

}  // namespace pare
