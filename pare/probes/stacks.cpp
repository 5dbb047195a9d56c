#include "pare/probes/stacks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <limits>

#include "pare/linear/leading_values.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

at::Tensor finite_rows(const at::Tensor& x) {
  return at::isfinite(x).flatten(1).all(1);
}

// LAPACK refuses what is not finite: such matrices go in as zeros, and come out as NaN.
at::Tensor cleared(const at::Tensor& x, const at::Tensor& finite) {
  return at::where(finite.view({-1, 1, 1}), x, 0.0);
}

// Matrices of the same singular values, also after the rows' mean is subtracted, and no wider than high.
at::Tensor narrowed(const at::Tensor& x) {
  if (x.size(1) >= x.size(2)) {
    return x;
  }
  return std::get<1>(at::linalg_qr(x.mT(), "r")).mT();
}

at::Tensor singular_values(const at::Tensor& x) {
  const bool tall = x.size(-2) > 2 * x.size(-1);
  return at::linalg_svdvals(tall ? std::get<1>(at::linalg_qr(x, "r")) : x);
}

// Sine of the angle between a vector and the space of the first `rank` columns of a basis [n, m].
double sine_to_space(const at::Tensor& vector, const at::Tensor& basis, int64_t rank) {
  const double norm = vector.norm().item<double>();
  if (norm == 0) {
    return 0;
  }
  const at::Tensor unit = vector / norm, space = basis.narrow(1, 0, rank);
  const at::Tensor rest = unit - at::mv(space, at::mv(space.t(), unit));
  // Once more, since what is left of a vector that lies in the space is rounding, and not orthogonal to it.
  return std::min(1.0, (rest - at::mv(space, at::mv(space.t(), rest))).norm().item<double>());
}

int64_t rank_above(const at::Tensor& values, double least) {
  return (values > least).sum().item<int64_t>();
}

double rounding_of(const at::Tensor& x, double epsilon) {
  return static_cast<double>(std::max(x.size(-2), x.size(-1))) * epsilon;
}

// The three numbers of one matrix [n, d].
std::array<double, 3> hypotheses(const at::Tensor& x, NormKind kind, double epsilon) {
  const bool layer = kind == NormKind::layer;
  const at::Tensor centred = layer ? x - x.mean(1, true) : x;
  const at::Tensor scales = centred.square().mean(1).sqrt(), sizes = x.square().mean(1).sqrt();
  const double largest = sizes.max().item<double>();
  const at::Tensor relative = layer ? at::where(sizes > 0, scales / sizes, 0.0) : scales / largest;
  std::array<double, 3> found = {largest > 0 ? relative.min().item<double>() : 0, not_a_number, not_a_number};
  const auto [basis, upper] = at::linalg_qr(x.t(), "reduced");
  const at::Tensor values = at::linalg_svdvals(upper);
  const double least = rounding_of(x, epsilon) * values[0].item<double>();
  const int64_t rank = rank_above(values, least);
  const bool all_rows = rank == x.size(0);
  if (layer) {
    const at::Tensor ones = at::ones({x.size(1)}, x.options());
    found[1] = all_rows ? sine_to_space(ones, basis, rank)
                        : sine_to_space(ones, std::get<2>(at::linalg_svd(x, false)).t(), rank);
  }
  // Of full row rank, and still so without the rows' means: then the columns span everything.
  if (all_rows && (!layer || found[1] > rounding_of(x, epsilon))) {
    found[2] = 0;
    return found;
  }
  const auto [left, centred_values, right] = at::linalg_svd(centred, false);
  found[2] = sine_to_space(scales, left, rank_above(centred_values, least));
  return found;
}

}  // namespace

Stacks over_rows(const Stacks& stacks, const std::function<Stacks(const Stacks&)>& function) {
  const int64_t rows = stacks.front().size(0);
  if (!stacks.front().is_cpu() || rows == 1) {
    return function(stacks);
  }
  std::vector<Stacks> parts(static_cast<size_t>(rows));
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // a thread's own
    for (int64_t row = begin; row < end; ++row) {
      Stacks one;
      for (const at::Tensor& stack : stacks) {
        one.push_back(stack.narrow(0, row, 1));
      }
      parts[row] = function(one);
    }
  });
  Stacks whole;
  for (size_t n = 0; n < parts.front().size(); ++n) {
    const std::vector<at::Tensor> pieces = mapped(parts, [&](const Stacks& part) { return part[n]; });
    whole.push_back(at::cat(pieces));
  }
  return whole;
}

StackRanks stack_ranks(const at::Tensor& x, const Tolerance& tolerance) {
  const double rounding = rounding_of(x, tolerance.epsilon);
  const Stacks found = over_rows({x}, [&](const Stacks& in) -> Stacks {
    const at::Tensor finite = finite_rows(in[0]), core = narrowed(cleared(in[0], finite));
    const at::Tensor values = singular_values(core), first = values.narrow(1, 0, 1);
    const at::Tensor centred = singular_values(core - core.mean(1, true)), first_centred = centred.narrow(1, 0, 1);
    const at::Tensor relative = values / first, squares = relative.square().sum(1);  // tiny ones would square to zero
    const at::Tensor affine = (centred > tolerance.threshold * first_centred).sum(1);
    const at::Tensor spread = first_centred > rounding * first;  // or what is left is rounding
    Stacks out = {(values > tolerance.threshold * first).sum(1).to(at::kDouble),
                  at::special_entr(values / values.sum(1, true)).sum(1).exp(),
                  squares,
                  at::where(spread.squeeze(1), ((centred / first).square().sum(1) / squares).sqrt(),
                            at::where(first.squeeze(1) > 0, 0.0, not_a_number)),
                  at::where(spread.squeeze(1), affine, 0).to(at::kDouble),
                  relative};
    for (at::Tensor& number : out) {
      number = at::where(number.dim() == 1 ? finite : finite.unsqueeze(1), number, not_a_number);
    }
    out.push_back(finite);
    return out;
  });
  return {found[0], found[1], found[2], found[3], found[4], found[5], found[6]};
}

at::Tensor stack_rank(const at::Tensor& x, const Tolerance& tolerance) {
  return over_rows({x},
                   [&](const Stacks& in) -> Stacks {
                     const at::Tensor finite = finite_rows(in[0]);
                     const at::Tensor values = singular_values(narrowed(cleared(in[0], finite)));
                     const at::Tensor rank =
                         (values > tolerance.threshold * values.narrow(1, 0, 1)).sum(1).to(at::kDouble);
                     return {at::where(finite, rank, not_a_number)};
                   })
      .front();
}

StackGaps stack_gaps(const at::Tensor& probabilities) {
  const int64_t rows = probabilities.size(0), heads = probabilities.size(1), n = probabilities.size(-1);
  const bool search = probabilities.is_cpu() && n >= shortest_search;
  // Large ones by themselves, so that a single sequence has work for all cores.
  const at::Tensor stack = search ? probabilities.reshape({rows * heads, 1, n, n}) : probabilities;
  const Stacks found = over_rows({stack}, [search](const Stacks& in) -> Stacks {
    const at::Tensor finite = at::isfinite(in[0]).flatten(2).all(2);
    if (search && finite.item<bool>()) {
      if (const auto two = leading_values(in[0][0][0])) {
        return {at::full_like(finite, two->first, at::kDouble), at::full_like(finite, two->second, at::kDouble)};
      }
    }
    const at::Tensor values = at::linalg_svdvals(at::where(finite.unsqueeze(-1).unsqueeze(-1), in[0], 0.0));
    const at::Tensor first = values.select(-1, 0);
    const at::Tensor second = values.size(-1) > 1 ? values.select(-1, 1) : at::full_like(first, not_a_number);
    return {at::where(finite, first, not_a_number), at::where(finite, second, not_a_number)};
  });
  return {found[0].view({rows, heads}), found[1].view({rows, heads})};
}

StackHypotheses stack_hypotheses(const at::Tensor& x, NormKind kind, const Tolerance& tolerance) {
  const Stacks found = over_rows({x}, [&](const Stacks& in) -> Stacks {
    const at::Tensor finite = finite_rows(in[0]);
    const at::Tensor numbers = at::full({in[0].size(0), 3}, not_a_number, at::kDouble);
    for (int64_t row = 0; row < in[0].size(0); ++row) {
      if (finite[row].item<bool>()) {
        const std::array<double, 3> found_here = hypotheses(in[0][row], kind, tolerance.epsilon);
        std::ranges::copy(found_here, numbers[row].data_ptr<double>());
      }
    }
    return {numbers};
  });
  return {found[0].select(1, 0), found[0].select(1, 1), found[0].select(1, 2)};
}

}  // namespace pare
