#include "pare/probes/recording.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pare/probes/merging.h"

namespace pare {

namespace {

constexpr const char* not_finite = "the activations are not finite";
constexpr const char* nothing_there = "the activations are zero";
constexpr const char* only_one_token = "one token sees only itself";
constexpr const char* writes_nothing = "a head writes nothing";
constexpr const char* rank_one_attention = "the second singular value is zero: attention of rank one";

std::vector<double> numbers_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.to(at::kCPU, at::kDouble).contiguous();
  return {plain.data_ptr<double>(), plain.data_ptr<double>() + plain.numel()};
}

// One number for each sequence; a NaN of finite activations has a reason of its own.
void add_all(Spread& spread, const at::Tensor& numbers, const at::Tensor& finite, const char* reason) {
  const std::vector<double> values = numbers_of(numbers), is_finite = numbers_of(finite);
  for (size_t n = 0; n < values.size(); ++n) {
    spread.add(values[n], is_finite[n] != 0 ? reason : not_finite);
  }
}

// How many keys each query sees, [n].
at::Tensor visible_tokens(const Attention& t, int64_t n, const at::TensorOptions& options) {
  const at::Tensor place = at::arange(n, options), behind = place.unsqueeze(1) - place.unsqueeze(0);
  at::Tensor allowed = t.mask == Mask::causal ? behind >= 0 : at::ones_like(behind, at::kBool);
  if (t.window) {
    allowed = allowed & (behind.abs() < static_cast<double>(*t.window));
  }
  return allowed.sum(1).to(at::kDouble);
}

// The gap of one attention matrix; `rounding`: what of σ1 a σ2 of zero may come out as.
void add_gap(Spread& gap, double first, double second, double rounding) {
  if (!std::isfinite(first)) {
    gap.add_undefined(not_finite);
  } else if (std::isnan(second)) {
    gap.add_undefined(only_one_token);
  } else if (second <= rounding * first) {
    gap.add_undefined(rank_one_attention);
  } else {
    gap.add(first / second);
  }
}

void check_all(Hypothesis& to, const at::Tensor& numbers, double least) {
  for (double number : numbers_of(numbers)) {
    to.number.add(number);
    if (std::isfinite(number)) {
      ++to.checked;
      to.holds += number > least ? 1 : 0;
    }
  }
}

}  // namespace

void record_ranks(RankMeasures& to, const StackRanks& found) {
  add_all(to.rank, found.rank, found.finite, nothing_there);
  add_all(to.effective_rank, found.effective_rank, found.finite, nothing_there);
  add_all(to.stable_rank, found.stable_rank, found.finite, nothing_there);
  add_all(to.distance_to_rank_one, found.distance_to_rank_one, found.finite, nothing_there);
  add_all(to.affine_rank, found.affine_rank, found.finite, nothing_there);
  const int64_t shown = std::min(found.spectrum.size(1), spectrum_length);
  to.spectrum.resize(std::max(to.spectrum.size(), static_cast<size_t>(shown)));
  const at::Tensor spectrum = found.spectrum.to(at::kCPU), finite = found.finite.to(at::kCPU);
  for (int64_t i = 0; i < shown; ++i) {
    add_all(to.spectrum[i], spectrum.select(1, i), finite, nothing_there);
  }
}

void record_attention(LayerMeasures& to, const Attention& attention, const at::Tensor& probabilities, double epsilon) {
  const int64_t n = probabilities.size(2);
  const at::Tensor visible = visible_tokens(attention, n, probabilities.options()), most = visible.log();
  const at::Tensor entropy = at::special_entr(probabilities).sum(-1);  // [rows, heads, n]
  const at::Tensor several = at::nonzero(visible > 1).flatten();
  const double none = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor relative = several.size(0) > 0
                                  ? (entropy.index_select(2, several) / most.index_select(0, several)).mean(2)
                                  : at::full_like(entropy.select(2, 0), none);
  const StackGaps gaps = stack_gaps(probabilities);
  const at::Tensor finite = at::isfinite(gaps.first).to(at::kCPU), mean = entropy.mean(2).to(at::kCPU);
  const at::Tensor distance = (most - entropy).mean(2).to(at::kCPU), share = relative.to(at::kCPU);
  const at::Tensor first = gaps.first.to(at::kCPU), second = gaps.second.to(at::kCPU);
  const double rounding = static_cast<double>(n) * epsilon;
  for (int64_t h = 0; h < std::ssize(to.heads); ++h) {
    HeadMeasures& head = to.heads[h];
    add_all(head.entropy, mean.select(1, h), finite.select(1, h), not_finite);
    add_all(head.distance_to_uniform, distance.select(1, h), finite.select(1, h), not_finite);
    add_all(head.relative_entropy, share.select(1, h), finite.select(1, h), only_one_token);
    add_all(head.inverse_gap, (second / first).select(1, h), finite.select(1, h), only_one_token);
    const std::vector<double> largest = numbers_of(first.select(1, h)), next = numbers_of(second.select(1, h));
    for (size_t row = 0; row < largest.size(); ++row) {
      add_gap(head.gap, largest[row], next[row], rounding);
    }
  }
}

void record_prefix(LayerMeasures& to, const at::Tensor& probabilities, double epsilon) {
  const StackGaps gaps = stack_gaps(probabilities);
  const int64_t tokens = probabilities.size(2);
  for (int64_t h = 0; h < std::ssize(to.heads); ++h) {
    Spread& gap = gap_at(to.heads[h], tokens);
    const std::vector<double> first = numbers_of(gaps.first.select(1, h)),
                              second = numbers_of(gaps.second.select(1, h));
    for (size_t row = 0; row < first.size(); ++row) {
      add_gap(gap, first[row], second[row], static_cast<double>(tokens) * epsilon);
    }
  }
}

at::Tensor record_heads(LayerMeasures& to, const at::Tensor& written, const OutputBases& bases,
                        const at::Tensor& output, const Tolerance& tolerance) {
  const at::Tensor finite = at::isfinite(written).flatten(1).all(1);
  const StackSubspaces spaces = stack_subspaces(written, bases, tolerance);
  for (int64_t h = 0; h < std::ssize(to.heads); ++h) {
    add_all(to.heads[h].output_dimension, spaces.dimension.select(1, h), finite, not_finite);
  }
  for (int64_t p = 0; p < std::ssize(to.pairs); ++p) {
    HeadPair& pair = to.pairs[p];
    const at::Tensor smallest = spaces.smallest.select(1, p);
    add_all(pair.smallest, smallest, finite, writes_nothing);
    add_all(pair.mean, spaces.mean.select(1, p), finite, writes_nothing);
    add_all(pair.alignment, smallest.cos().square(), finite, writes_nothing);
  }
  const at::Tensor together = at::matmul(written.flatten(2, 3), output.t());
  add_all(to.multi_head_rank, stack_rank(together, tolerance), finite, not_finite);
  for (int64_t row = 0; row < written.size(0); ++row) {
    to.recovery_ambiguity.add(static_cast<double>(written.size(1) * to.ambiguity_of_a_token));
  }
  return at::where(finite.view({-1, 1, 1}), together, 0.0).flatten(0, 1);
}

int64_t rank_of_gram(const at::Tensor& gram, double threshold) {
  // Squares keep half of the digits: what is smaller than this cannot be told from rounding.
  const double least = std::max(threshold, 1e-7);
  const at::Tensor values = at::linalg_eigvalsh(gram).clamp_min(0).sqrt();
  return (values > least * values.max()).sum().item<int64_t>();
}

void record_gains(NormMeasures& to, const at::Tensor& gains) {
  const at::Tensor sizes = gains.defined() ? gains.to(at::kCPU, at::kDouble).abs() : at::ones({1}, at::kDouble);
  const double largest = sizes.max().item<double>(), least = sizes.min().item<double>();
  to.gains_nonzero.checked = 1;
  to.gains_nonzero.holds = least > 0 ? 1 : 0;
  to.gains_nonzero.number.add(largest > 0 ? least / largest : 0);
  if (to.kind == NormKind::rms) {
    to.ones_outside.inapplicable = "RMSNorm subtracts no mean";
  } else if (to.kind == NormKind::dyt || to.kind == NormKind::scale) {
    const char* why = to.kind == NormKind::dyt ? "DyT bends each number for itself and rescales no row"
                                               : "a scale multiplies each number and rescales no row";
    for (Hypothesis NormMeasures::*hypothesis :
         {&NormMeasures::no_constant_row, &NormMeasures::ones_outside, &NormMeasures::scales_outside}) {
      (to.*hypothesis).inapplicable = why;
    }
  }
}

void record_hypotheses(NormMeasures& to, const at::Tensor& x, const Tolerance& tolerance) {
  if (to.kind == NormKind::dyt || to.kind == NormKind::scale) {
    return;
  }
  const double rounding = static_cast<double>(std::max(x.size(1), x.size(2))) * tolerance.epsilon;
  const StackHypotheses found = stack_hypotheses(x, to.kind, tolerance);
  check_all(to.no_constant_row, found.row_scale, rounding);
  check_all(to.scales_outside, found.scales_sine, 10 * rounding);
  if (to.kind == NormKind::layer) {
    check_all(to.ones_outside, found.ones_sine, 10 * rounding);
  }
}

at::Tensor overflowing_rows(const at::Tensor& x) {
  const bool narrow = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;  // norms compute in float32
  const at::Tensor wide = narrow ? x.to(at::kFloat) : x;
  return at::isfinite(x).all(-1).logical_and(at::isinf(wide.square().mean(-1))).any(-1);
}

void record_change(NormMeasures& to, const StackRanks& before, const StackRanks& after) {
  const at::Tensor finite = before.finite & after.finite;
  add_all(to.rank_change, (after.rank - before.rank).abs(), finite, not_finite);
  add_all(to.affine_rank_change, (after.affine_rank - before.affine_rank).abs(), finite, not_finite);
}

}  // namespace pare
