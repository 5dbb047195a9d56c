#include "pare/linear/map_fit.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

namespace pare {

namespace {

// Columns of equal size, so that no entry of the map drowns in the units of another.
at::Tensor column_sizes(const at::Tensor& rows) {
  const at::Tensor sizes = rows.square().mean(0).sqrt();
  return at::where(sizes > 0, sizes, at::ones_like(sizes));
}

// A row of almost nothing is what rounding left of a zero, and says nothing.
at::Tensor with_floor(const at::Tensor& sizes) {
  constexpr double least = 1e-6;
  const at::Tensor floor = sizes.numel() == 0 ? at::ones({}, sizes.options()) : sizes.max() * least;
  return at::maximum(sizes, at::where(floor > 0, floor, at::ones_like(floor)));
}

struct Equations {
  at::Tensor reference, candidate;
};

// All samples of one role, each in units of its own rounding, which is that of the candidate.
Equations stacked_rows(const std::vector<MapSamples>& samples, Role role, const at::Tensor& like) {
  std::vector<at::Tensor> reference = {at::empty({0, like.size(0)}, like.options())}, candidate = reference;
  for (const MapSamples& sample : samples) {
    if (sample.role != role) {
      continue;
    }
    const at::Tensor sizes = sample.candidate.norm(2, {1}, true);
    at::Tensor units = with_floor(sizes);
    units = sample.weights.defined() ? units / sample.weights : units;
    reference.push_back(sample.reference / units);
    candidate.push_back(sample.candidate / units);
  }
  return {at::cat(reference), at::cat(candidate)};
}

// As many equations as there are unknowns in each, with the same least squares.
std::pair<at::Tensor, at::Tensor> condensed(const at::Tensor& reference, const at::Tensor& candidate) {
  const int64_t width = reference.size(1);
  if (reference.size(0) <= 4 * width) {
    return {reference, candidate};
  }
  const at::Tensor triangle = std::get<1>(at::linalg_qr(at::cat({reference, candidate}, 1), "r"));
  return {triangle.narrow(1, 0, width), triangle.narrow(1, width, width)};
}

// H X + X G = F for symmetric positive H and G. What neither of them sees stays zero.
class SylvesterSolver {
 public:
  SylvesterSolver(const at::Tensor& h, const at::Tensor& g) {
    std::tie(values_h_, vectors_h_) = at::linalg_eigh(h);
    std::tie(values_g_, vectors_g_) = at::linalg_eigh(g);
    sums_ = values_h_.clamp_min(0).unsqueeze(1) + values_g_.clamp_min(0).unsqueeze(0);
    seen_ = sums_ > sums_.max() * 1e-14;
  }
  at::Tensor solve(const at::Tensor& f) const {
    const at::Tensor inside = at::matmul(at::matmul(vectors_h_.t(), f), vectors_g_);
    const at::Tensor divided = at::where(seen_, inside / at::where(seen_, sums_, at::ones_like(sums_)), 0.0);
    return at::matmul(at::matmul(vectors_h_, divided), vectors_g_.t());
  }

 private:
  at::Tensor values_h_, vectors_h_, values_g_, vectors_g_, sums_, seen_;
};

}  // namespace

at::Tensor nearest_orthogonal(const at::Tensor& matrix) {
  const auto [u, values, v] = at::linalg_svd(matrix, /*full_matrices=*/false);
  at::Tensor nearest = at::matmul(u, v);
  // Of what a decomposition loses, this takes all but the last digit (Newton and Schulz).
  const at::Tensor eye = at::eye(matrix.size(0), matrix.options());
  nearest = at::matmul(nearest, 1.5 * eye - 0.5 * at::matmul(nearest.t(), nearest));
  return nearest;
}

at::Tensor procrustes(const at::Tensor& reference, const at::Tensor& candidate, const at::Tensor& start) {
  const at::Tensor inner = at::matmul(reference.t(), candidate);
  const double size = inner.norm().item<double>();
  // Directions without rows stay as they are at the start: too little to move any that has some.
  return nearest_orthogonal(size > 0 ? inner + start * (size * 1e-15) : start);
}

std::vector<std::pair<int64_t, int64_t>> turning_planes(const Rope& rope) {
  std::vector<std::pair<int64_t, int64_t>> planes;
  for (int64_t i = 0; i < rope.width / 2; ++i) {
    planes.push_back(rope.layout == RopeLayout::half ? std::pair(i, i + rope.width / 2) : std::pair(2 * i, 2 * i + 1));
  }
  return planes;
}

at::Tensor fit_map(const std::vector<MapSamples>& samples, const at::Tensor& guess) {
  auto [written_a, written_b] = stacked_rows(samples, Role::writer, guess);
  auto [read_a, read_b] = stacked_rows(samples, Role::reader, guess);
  if (written_a.size(0) + read_a.size(0) == 0) {
    return guess;
  }
  const bool writes = written_a.size(0) > 0, reads = read_a.size(0) > 0;
  const at::Tensor s = writes ? column_sizes(written_a) : 1 / column_sizes(read_a);
  const at::Tensor t = reads ? column_sizes(read_b) : 1 / column_sizes(written_b);
  std::tie(written_a, written_b) = condensed(written_a / s, written_b * t);
  std::tie(read_a, read_b) = condensed(read_a * s, read_b / t);

  const at::Tensor units = s.unsqueeze(1) * t.unsqueeze(0);
  at::Tensor map = guess / units;
  const SylvesterSolver solver(at::matmul(read_a.t(), read_a), at::matmul(written_b.t(), written_b));
  // The normal equations square the condition number. Corrections made of the equations' own residuals undo that.
  double before = std::numeric_limits<double>::infinity();
  constexpr int most_corrections = 20;
  for (int i = 0; i < most_corrections; ++i) {
    const at::Tensor missing = at::matmul((written_a - at::matmul(written_b, map.t())).t(), written_b) +
                               at::matmul(read_a.t(), read_b - at::matmul(read_a, map));
    const at::Tensor correction = solver.solve(missing);
    const double size = correction.norm().item<double>();
    if (!(size < before * 0.7)) {
      break;
    }
    map = map + correction;
    before = size;
  }
  return map * units;
}

at::Tensor fit_turning_map(const std::vector<MapSamples>& samples, const Rope& rope, const at::Tensor& guess) {
  at::Tensor map = at::zeros_like(guess);
  const int64_t turned = rope.width, free = guess.size(0) - turned;
  if (free > 0) {
    std::vector<MapSamples> still;
    for (const MapSamples& sample : samples) {
      still.push_back(
          {sample.role, sample.reference.narrow(1, turned, free), sample.candidate.narrow(1, turned, free)});
    }
    map.narrow(0, turned, free)
        .narrow(1, turned, free)
        .copy_(fit_map(still, guess.narrow(0, turned, free).narrow(1, turned, free)));
  }
  // On a plane the map is one complex number w: a writer says a = w b, a reader conj(b) = w conj(a).
  for (const auto& [x, y] : turning_planes(rope)) {
    at::Tensor along = at::zeros({}, guess.options()), across = along.clone(), size = along.clone();
    for (const MapSamples& sample : samples) {
      const bool writes = sample.role == Role::writer;
      const at::Tensor& from = writes ? sample.candidate : sample.reference;
      const at::Tensor& to = writes ? sample.reference : sample.candidate;
      const at::Tensor fx = from.select(1, x), fy = from.select(1, y), tx = to.select(1, x), ty = to.select(1, y);
      const at::Tensor cx = sample.candidate.select(1, x), cy = sample.candidate.select(1, y);
      const at::Tensor unit = with_floor((cx.square() + cy.square()).sqrt()).square();
      along = along + ((tx * fx + ty * fy) / unit).sum();
      across = across + ((ty * fx - tx * fy) / unit).sum() * (writes ? 1 : -1);
      size = size + ((fx.square() + fy.square()) / unit).sum();
    }
    const bool known = size.item<double>() > 0;
    const at::Tensor a = known ? along / size : guess[x][x], b = known ? across / size : guess[y][x];
    map[x][x].copy_(a);
    map[y][y].copy_(a);
    map[y][x].copy_(b);
    map[x][y].copy_(-b);
  }
  return map;
}

at::Tensor fit_rotation(const std::vector<MapSamples>& samples, const at::Tensor& guess) {
  std::vector<at::Tensor> reference = {at::empty({0, guess.size(0)}, guess.options())}, candidate = reference;
  for (const MapSamples& sample : samples) {
    const at::Tensor sizes = sample.candidate.norm(2, {1}, true);
    const at::Tensor units = at::where(sizes > 1e-6 * sizes.max(), sizes, sizes.max().clamp_min(1e-300) * 1e3);
    const at::Tensor weights = sample.weights.defined() ? sample.weights / units : 1 / units;
    reference.push_back(sample.reference * weights);
    candidate.push_back(sample.candidate * weights);
  }
  const at::Tensor a = at::cat(reference), b = at::cat(candidate);
  const auto off = [&](const at::Tensor& map) { return (a - at::matmul(b, map.t())).norm().item<double>(); };
  const at::Tensor turned = procrustes(a, b, guess);
  // Where numbers are exact, squares lose digits that the equations themselves still have.
  const at::Tensor closer = nearest_orthogonal(fit_map(samples, turned));
  return off(closer) < off(turned) ? closer : turned;
}

// Planes without their scale, and the orthogonal matrix nearest to the rest.
static at::Tensor nearest_turning_rotation(at::Tensor map, const Rope& rope) {
  const int64_t free = map.size(0) - rope.width;
  for (const auto& [x, y] : turning_planes(rope)) {
    const double length = std::hypot(map[x][x].item<double>(), map[y][x].item<double>());
    for (const auto& [row, column] : {std::pair(x, x), {x, y}, {y, x}, {y, y}}) {
      map[row][column].div_(length > 0 ? length : 1);
    }
  }
  if (free > 0) {
    at::Tensor rest = map.narrow(0, rope.width, free).narrow(1, rope.width, free);
    rest.copy_(nearest_orthogonal(rest.clone()));
  }
  return map;
}

at::Tensor fit_in_group(MapGroup group, const std::optional<Rope>& rope, const std::vector<MapSamples>& samples,
                        const at::Tensor& guess) {
  switch (group) {
    case MapGroup::identity:
      return guess;
    case MapGroup::turning:
      return fit_turning_map(samples, *rope, guess);
    case MapGroup::general:
      return fit_map(samples, guess);
    case MapGroup::rotation:
      return fit_rotation(samples, guess);
    case MapGroup::turning_rotation:
      return nearest_turning_rotation(fit_turning_map(samples, *rope, guess), *rope);
  }
  return guess;
}

at::Tensor usual_sizes(const std::vector<MapSamples>& samples, const at::Tensor& map) {
  const Equations readers = stacked_rows(samples, Role::reader, map);
  return column_sizes(readers.candidate.size(0) > 0 ? readers.candidate : map);
}

at::Tensor block_diagonal(const at::Tensor& matrices, int64_t heads) {
  std::vector<at::Tensor> blocks;
  const int64_t share = heads / matrices.size(0);
  for (int64_t h = 0; h < heads; ++h) {
    blocks.push_back(matrices[h / share]);
  }
  return at::block_diag(blocks);
}

}  // namespace pare
