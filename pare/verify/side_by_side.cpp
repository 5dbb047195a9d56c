#include "pare/verify/side_by_side.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/probes/assignment.h"

namespace pare {

namespace {

Taps recording_attention() {
  Taps taps;
  taps.record("blocks.*.attention.probabilities");
  return taps;
}

}  // namespace

SideBySide::SideBySide(const ComparedModel& reference, const ComparedModel& other, const Inputs& sequence)
    : sequence_{sequence},
      first_taps_(recording_attention()),
      second_taps_(recording_attention()),
      first_(reference.model, reference.arithmetic, sequence_, &first_taps_),
      second_(other.model, other.arithmetic, sequence_, &second_taps_) {}

std::string SideBySide::tap() const {
  return fmt::format("blocks.{}.attention.probabilities", done());
}

SideBySide::Attention SideBySide::run_layer() {
  const std::string name = tap();
  first_.run_layer();
  second_.run_layer();
  const Attention found{first_taps_.recorded().at(name), second_taps_.recorded().at(name)};
  first_taps_.clear();
  second_taps_.clear();
  return found;
}

SideBySide::Attention in_best_order(const SideBySide::Attention& attention) {
  const int64_t heads = attention.reference.size(1);
  at::Tensor costs = at::empty({heads, heads}, at::kDouble);
  for (int64_t i = 0; i < heads; ++i) {
    // One head beside all others: that of all beside all would not fit.
    const at::Tensor gaps = (attention.other - attention.reference.narrow(1, i, 1)).abs();
    costs[i].copy_(gaps.amax({0, 2, 3}).to(at::kCPU, at::kDouble));
  }
  const at::Tensor order = at::tensor(assign(costs.nan_to_num(1e300)), at::kLong).to(attention.other.device());
  return {attention.reference, attention.other.index_select(1, order)};
}

at::Tensor gap_of(const SideBySide::Attention& attention, const Inputs& sequence) {
  const at::Tensor gap = (attention.reference.to(at::kDouble) - attention.other.to(at::kDouble)).abs();
  return sequence.mask.defined() ? gap.index_select(2, at::nonzero(sequence.mask[0]).flatten()) : gap;
}

}  // namespace pare
