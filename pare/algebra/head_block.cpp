#include "pare/algebra/head_block.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pare {

namespace {

constexpr double largest_entry = 1.01;     // of C; a swap for less would gain nothing and could go on for long
constexpr double well_known_growth = 1e4;  // up to which a square root of the digits is enough to know it by
constexpr int64_t at_once = 1024 * 1024;   // numbers of heads that are worked on together, to stay in the caches

// Rows of each head's orthonormal basis [heads, d, k], in the order in which each adds most volume to those before.
at::Tensor greedy_rows(const at::Tensor& basis) {
  const int64_t heads = basis.size(0), k = basis.size(2);
  at::Tensor volume = basis.square().sum(2), rows = at::empty({heads, k}, at::kLong);
  at::Tensor directions = at::zeros({heads, k, k}, basis.options());
  for (int64_t j = 0; j < k; ++j) {
    const at::Tensor row = volume.argmax(1, /*keepdim=*/true);
    at::Tensor direction = basis.gather(1, row.unsqueeze(2).expand({heads, 1, k}));
    for (int again = 0; again < 2; ++again) {  // once leaves what rounding left
      direction = direction - at::matmul(at::matmul(direction, directions.transpose(1, 2)), directions);
    }
    direction = direction / direction.norm(2, {2}, /*keepdim=*/true);
    directions.narrow(1, j, 1).copy_(direction);
    rows.narrow(1, j, 1).copy_(row);
    volume.sub_(at::matmul(basis, direction.transpose(1, 2)).squeeze(2).square()).scatter_(1, row, -1.0);
  }
  return rows;
}

at::Tensor rows_of(const at::Tensor& matrix, const at::Tensor& rows) {  // [heads, d, k], [heads, k]
  return matrix.gather(1, rows.unsqueeze(2).expand({rows.size(0), rows.size(1), matrix.size(2)}));
}

// Cᵀ, [heads, k, d]: with the identity in the columns of those rows.
at::Tensor coefficients(const at::Tensor& basis, const at::Tensor& rows) {
  return at::linalg_solve(rows_of(basis, rows).transpose(1, 2), basis.transpose(1, 2));
}

// Exchanges a row for another while that makes the volume grow by more than largest_entry, in all heads at once: an
// entry of C is the factor by which the exchange would change it.
void exchange_rows(const at::Tensor& basis, at::Tensor& rows) {
  const int64_t heads = basis.size(0), d = basis.size(1);
  at::Tensor c = coefficients(basis, rows).contiguous();
  for (;;) {
    const auto [most, place] = c.abs().flatten(1).max(1, /*keepdim=*/true);
    const at::Tensor exchanged = most > largest_entry;
    if (!exchanged.any().item<bool>()) {
      return;
    }
    const at::Tensor out = place.div(d, "floor"), in = place.remainder(d);  // [heads, 1]
    const at::Tensor row = c.gather(1, out.unsqueeze(2).expand({heads, 1, d}));
    at::Tensor column = c.gather(2, in.unsqueeze(1).expand({heads, c.size(1), 1})).squeeze(2);
    const at::Tensor pivot = column.gather(1, out);
    column.scatter_add_(1, out, at::full_like(pivot, -1.0));
    column = at::where(exchanged, column / pivot, at::zeros_like(column));
    c.baddbmm_(column.unsqueeze(2), row, /*beta=*/1, /*alpha=*/-1);
    rows.scatter_(1, out, at::where(exchanged, in, rows.gather(1, out)));
  }
}

// Which inputs are not a head's pivots, ascending.
at::Tensor others_of(const at::Tensor& pivots, int64_t width) {
  const at::Tensor is_pivot = at::zeros({pivots.size(0), width}, at::kLong).scatter_(1, pivots, 1);
  return at::argsort(is_pivot, /*stable=*/true, 1, false).narrow(1, 0, width - pivots.size(1));
}

at::Tensor columns_of(const at::Tensor& matrix, const at::Tensor& columns) {  // [heads, k, d], [heads, n]
  return matrix.gather(2, columns.unsqueeze(1).expand({matrix.size(0), matrix.size(1), columns.size(1)}));
}

at::Tensor some_identity_blocks(const at::Tensor& heads) {
  const at::Tensor basis = std::get<0>(at::linalg_qr(heads.transpose(1, 2))).contiguous();
  at::Tensor pivots = greedy_rows(basis);
  exchange_rows(basis, pivots);
  pivots = std::get<0>(pivots.sort(1));
  const at::Tensor rest = columns_of(coefficients(basis, pivots), others_of(pivots, heads.size(2)));
  return at::cat({columns_of(heads, pivots), rest, pivots.unsqueeze(2).to(heads.scalar_type())}, 2);
}

// |R| |R⁻ᵀ b| / |b| of the heads [heads, k, k], given Rᵀ; the most of them.
double growth_of(const at::Tensor& lower, const at::Tensor& bias) {
  const at::Tensor seen = at::linalg_solve_triangular(lower, bias.unsqueeze(2), /*upper=*/false).squeeze(2);
  const at::Tensor length = bias.norm(2, {1}), growth = lower.norm(2, {1, 2}) * seen.norm(2, {1}) / length;
  const at::Tensor counted = at::where(length > 0, growth, at::ones_like(growth));
  const double most = counted.max().item<double>();
  return std::isfinite(most) ? std::max(most, 1.0) : std::numeric_limits<double>::infinity();
}

}  // namespace

// A batch of heads for each core: many small steps, of which each alone gains nothing from several.
at::Tensor identity_blocks(const at::Tensor& heads) {
  const int64_t threads = at::get_num_threads(), fitting = at_once / (heads.size(1) * heads.size(2));
  const int64_t share = std::max<int64_t>(1, std::min((heads.size(0) + threads - 1) / threads, fitting));
  std::vector<at::Tensor> batches = heads.split(share);
  at::parallel_for(0, std::ssize(batches), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      at::Tensor& batch = batches[i];
      batch = some_identity_blocks(batch);
    }
  });
  return at::cat(batches);
}

at::Tensor block_part(const at::Tensor& blocks) {
  return blocks.narrow(2, 0, blocks.size(1));
}

at::Tensor rest_part(const at::Tensor& blocks) {
  return blocks.narrow(2, blocks.size(1), blocks.size(2) - 1 - blocks.size(1));
}

at::Tensor pivot_part(const at::Tensor& blocks) {
  return blocks.select(2, blocks.size(2) - 1);
}

double bias_growth(const at::Tensor& heads, const at::Tensor& bias) {
  // R of Wᵀ W is quick, and right while it is well conditioned; else the one of W itself.
  const auto [lower, failed] = at::linalg_cholesky_ex(at::matmul(heads, heads.transpose(1, 2)));
  if (!failed.any().item<bool>()) {
    if (const double growth = growth_of(lower, bias); growth < well_known_growth) {
      return growth;
    }
  }
  return growth_of(std::get<1>(at::linalg_qr(heads.transpose(1, 2), "r")).transpose(1, 2), bias);
}

Weight unshrunk(const Weight& rest, const Weight& pivots) {
  const int64_t heads = rest.shape()[0], k = rest.shape()[1], width = rest.shape()[2] + k;
  return computed({heads * k, width}, Formula::enclosed("unshrunk(", rest.formula(), ")"), {rest, pivots},
                  [=](const std::vector<at::Tensor>& in) {
                    const at::Tensor places = in[1].to(at::kLong), others = others_of(places, width);
                    const auto spread = [&](const at::Tensor& columns) {
                      return columns.unsqueeze(1).expand({heads, k, columns.size(1)});
                    };
                    const at::Tensor block = at::eye(k, in[0].options()).expand({heads, k, k});
                    return at::zeros({heads, k, width}, in[0].options())
                        .scatter(2, spread(others), in[0])
                        .scatter(2, spread(places), block)
                        .view({heads * k, width});
                  });
}

}  // namespace pare
