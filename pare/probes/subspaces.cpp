#include "pare/probes/subspaces.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace pare {

namespace {

// Above it, arccos of the cosine has lost half of its digits: the sine is asked.
constexpr double too_near_one = 1 - 1e-8;

at::Tensor angles_of(const at::Tensor& cosines) {
  return at::acos(cosines.clamp(0, 1));
}

struct RowSpaces {
  at::Tensor directions;  // [rows, heads, m, q]: orthonormal, zero beyond each head's dimension
  at::Tensor dimension;   // [rows, heads]
};

// The row spaces in the coordinates of the bases.
RowSpaces row_spaces(const at::Tensor& written, const OutputBases& bases, double threshold) {
  const at::Tensor finite = at::isfinite(written).flatten(1).all(1).view({-1, 1, 1, 1});
  const at::Tensor heads = at::where(finite, written, 0.0).transpose(1, 2);    // [rows, heads, n, k]
  const at::Tensor coordinates = at::matmul(heads, bases.upper.mT());          // [rows, heads, n, m]
  const auto [left, values, right] = at::linalg_svd(coordinates.mT(), false);  // columns of left: directions
  const at::Tensor used = values > threshold * values.narrow(-1, 0, 1);
  return {left * used.unsqueeze(-2), used.sum(-1)};
}

// One sequence: its angles, pair by pair.
void fill_angles(const RowSpaces& spaces, int64_t row, const OutputBases& bases, double* smallest, double* mean) {
  const at::Tensor dimension = spaces.dimension[row].to(at::kCPU);
  const int64_t full = bases.basis.size(2);
  std::vector<int64_t> of_this_sequence;  // pairs with a head that does not use all of its coordinates
  for (size_t p = 0; p < bases.pairs.size(); ++p) {
    const auto [g, h] = bases.pairs[p];
    if (dimension[g].item<int64_t>() < full || dimension[h].item<int64_t>() < full) {
      of_this_sequence.push_back(static_cast<int64_t>(p));
    }
  }
  at::Tensor cosines = bases.cosines;
  if (!of_this_sequence.empty()) {
    std::vector<int64_t> firsts, seconds;
    for (int64_t p : of_this_sequence) {
      firsts.push_back(bases.pairs[p].first);
      seconds.push_back(bases.pairs[p].second);
    }
    const auto index = [&](const std::vector<int64_t>& list) {
      return at::tensor(list, at::kLong).to(bases.basis.device());
    };
    const at::Tensor directions = spaces.directions[row], which = index(of_this_sequence);
    const at::Tensor between =
        at::matmul(directions.index_select(0, index(firsts)).mT(),
                   at::matmul(bases.between.index_select(0, which), directions.index_select(0, index(seconds))));
    at::Tensor values = at::linalg_svdvals(between);
    values = at::constant_pad_nd(values, {0, full - values.size(-1)});
    cosines = cosines.index_copy(0, which, values);
  }
  cosines = cosines.to(at::kCPU);
  for (size_t p = 0; p < bases.pairs.size(); ++p) {
    const auto [g, h] = bases.pairs[p];
    const int64_t of_g = dimension[g].item<int64_t>(), of_h = dimension[h].item<int64_t>();
    if (of_g == 0 || of_h == 0) {
      smallest[p] = mean[p] = std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    const at::Tensor here = cosines[static_cast<int64_t>(p)].narrow(0, 0, std::min(of_g, of_h));
    at::Tensor angles = angles_of(here);
    if (here[0].item<double>() > too_near_one) {
      const at::Tensor directions = spaces.directions[row];
      angles = principal_angles(at::matmul(bases.basis[g], directions[g].narrow(1, 0, of_g)),
                                at::matmul(bases.basis[h], directions[h].narrow(1, 0, of_h)));
    }
    smallest[p] = angles.min().item<double>();
    mean[p] = angles.mean().item<double>();
  }
}

}  // namespace

at::Tensor principal_angles(const at::Tensor& a, const at::Tensor& b) {
  const bool ordered = a.size(1) >= b.size(1);
  const at::Tensor &large = ordered ? a : b, &small = ordered ? b : a;
  const at::Tensor inner = at::matmul(large.t(), small);
  const at::Tensor by_cosine = angles_of(at::linalg_svdvals(inner));
  const at::Tensor sines = at::linalg_svdvals(small - at::matmul(large, inner)).flip(0);
  const at::Tensor by_sine = at::asin(sines.clamp(0, 1));
  return at::where(by_cosine < 0.7, by_sine, by_cosine);
}

OutputBases output_bases(const at::Tensor& output, int64_t heads) {
  const int64_t d = output.size(0), k = output.size(1) / heads;
  OutputBases bases;
  const Stacks factors = over_rows({output.view({d, heads, k}).transpose(0, 1)}, [](const Stacks& in) -> Stacks {
    const auto [basis, upper] = at::linalg_qr(in[0], "reduced");
    return {basis, upper};
  });
  bases.basis = factors[0];
  bases.upper = factors[1];
  std::vector<at::Tensor> between;
  for (int64_t g = 0; g < heads; ++g) {
    for (int64_t h = g + 1; h < heads; ++h) {
      bases.pairs.emplace_back(g, h);
      between.push_back(at::matmul(bases.basis[g].t(), bases.basis[h]));
    }
  }
  const int64_t m = bases.basis.size(2);
  bases.between = between.empty() ? at::zeros({0, m, m}, output.options()) : at::stack(between);
  bases.cosines =
      between.empty()
          ? at::zeros({0, m}, output.options())
          : over_rows({bases.between}, [](const Stacks& in) -> Stacks { return {at::linalg_svdvals(in[0])}; }).front();
  return bases;
}

StackSubspaces stack_subspaces(const at::Tensor& written, const OutputBases& bases, const Tolerance& tolerance) {
  const int64_t pairs = std::ssize(bases.pairs);
  const Stacks found = over_rows({written}, [&](const Stacks& in) -> Stacks {
    const RowSpaces spaces = row_spaces(in[0], bases, tolerance.threshold);
    const int64_t rows = in[0].size(0);
    const at::Tensor smallest = at::empty({rows, pairs}, at::kDouble), mean = at::empty({rows, pairs}, at::kDouble);
    for (int64_t row = 0; row < rows; ++row) {
      fill_angles(spaces, row, bases, smallest[row].data_ptr<double>(), mean[row].data_ptr<double>());
    }
    const at::Tensor finite = at::isfinite(in[0]).flatten(1).all(1).unsqueeze(1).to(at::kCPU);
    const at::Tensor dimension =
        at::where(finite, spaces.dimension.to(at::kCPU, at::kDouble), std::numeric_limits<double>::quiet_NaN());
    return {dimension, smallest, mean};
  });
  return {found[0], found[1], found[2]};
}

double asymmetry(const at::Tensor& query, const at::Tensor& key) {
  // In an orthonormal basis of both: M = B (R_q R_kᵀ) Bᵀ, of the same norms.
  const int64_t k = query.size(1);
  const at::Tensor upper = std::get<1>(at::linalg_qr(at::cat({query, key}, 1), "r"));
  const at::Tensor core = at::matmul(upper.narrow(1, 0, k), upper.narrow(1, k, key.size(1)).t());
  return (0.5 * (core - core.t()).norm() / core.norm()).item<double>();
}

}  // namespace pare
