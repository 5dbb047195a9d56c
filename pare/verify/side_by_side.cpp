#include "pare/verify/side_by_side.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pare/linear/assignment.h"
#include "pare/verify/questions.h"

namespace pare {

namespace {

class SideBySide {
 public:
  // All that is referred to outlives this.
  SideBySide(const ComparedModel& reference, const ComparedModel& other, const Inputs& sequence);

  const BlockwiseRun& reference() const { return first_; }
  const BlockwiseRun& other() const { return second_; }
  int64_t layers() const { return std::min(first_.layers(), second_.layers()); }  // that both have
  int64_t done() const { return first_.done(); }
  std::string tap() const;  // of the layer that run_layer runs next

  struct Attention {
    at::Tensor reference, other;  // probabilities [1, heads, tokens, tokens]
    bool same_heads() const { return reference.sizes() == other.sizes(); }
  };
  Attention run_layer();

 private:
  std::vector<Inputs> sequence_;
  Taps first_taps_, second_taps_;
  BlockwiseRun first_, second_;
};

Taps recording_attention() {
  Taps taps;
  taps.record("blocks.*.attention.probabilities");
  return taps;
}

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

// The other's heads in the order that fits the reference's best: nothing but their sum is seen behind them.
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

// |reference - other| at every query that is a token: what padding looks at means nothing.
at::Tensor gap_of(const SideBySide::Attention& attention, const Inputs& sequence) {
  const at::Tensor gap = (attention.reference.to(at::kDouble) - attention.other.to(at::kDouble)).abs();
  return sequence.mask.defined() ? gap.index_select(2, at::nonzero(sequence.mask[0]).flatten()) : gap;
}

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

at::Tensor real_tokens(const at::Tensor& stream, const Inputs& sequence) {
  return sequence.mask.defined() ? stream.index_select(1, at::nonzero(sequence.mask[0]).flatten()) : stream;
}

double stream_gap(const at::Tensor& one, const at::Tensor& other, const Inputs& sequence) {
  const at::Tensor first = real_tokens(one.to(at::kDouble), sequence);
  const at::Tensor second = real_tokens(other.to(at::kDouble), sequence);
  return ((first - second).norm() / first.norm()).item<double>();
}

void add_sequence(const ComparedModel& reference, const ComparedModel& other, const Inputs& sequence,
                  LayerGaps& result) {
  SideBySide both(reference, other, sequence);
  const int64_t ours = both.reference().layers(), theirs = both.other().layers(), layers = both.layers();
  if (ours != theirs) {
    result.note =
        fmt::format("the reference has {} layers, the other {}: only the first {} are compared", ours, theirs, layers);
  }
  result.layers.resize(layers);
  for (LayerGap& layer : result.layers) {
    const std::string tap = both.tap();
    const SideBySide::Attention attention = both.run_layer();
    const at::Tensor &stream = both.reference().streams().x[0], &other_stream = both.other().streams().x[0];
    const bool same_width = stream.sizes() == other_stream.sizes();
    layer.residual.push_back(same_width ? stream_gap(stream, other_stream, sequence) : unknown);
    if (!same_width) {
      result.note = fmt::format("the stream is {} wide in the reference, {} in the other", stream.size(-1),
                                other_stream.size(-1));
    }
    if (!attention.same_heads()) {
      const int64_t heads = attention.reference.size(1);
      result.note =
          fmt::format("{} has {} heads in the reference, {} in the other", tap, heads, attention.other.size(1));
      layer.attention.push_back(unknown);
      layer.heads.assign(static_cast<size_t>(heads), unknown);
      continue;
    }
    // By head: the largest over queries and keys.
    const at::Tensor heads = gap_of(attention, sequence).amax(at::IntArrayRef({0, 2, 3})).to(at::kCPU).contiguous();
    layer.heads.resize(static_cast<size_t>(heads.size(0)), 0);
    for (int64_t h = 0; h < heads.size(0); ++h) {
      double& most = layer.heads[h];
      most = std::max(heads[h].item<double>(), most);
    }
    layer.attention.push_back(heads.max().item<double>());
  }
}

}  // namespace

LayerGaps layer_gaps(const ComparedModel& reference, const ComparedModel& other, std::span<const Inputs> sequences) {
  LayerGaps result;
  for (const Inputs& sequence : sequences) {
    add_sequence(reference, other, sequence, result);
  }
  return result;
}

Divergence first_divergence(const ComparedModel& reference, const ComparedModel& candidate, const Inputs& sequence,
                            const std::string& answer, double difference, double allowed) {
  Divergence found{.allowed = allowed};
  if (const int64_t tokens = sequence.ids.defined() ? sequence.ids.size(1) : 0;
      !can_hold_attention(reference.model.architecture, tokens) ||
      !can_hold_attention(candidate.model.architecture, tokens)) {
    found.tap = answer;
    found.difference = difference;
    found.note = fmt::format("what heads attend to in a sequence of {} tokens was too much to hold", tokens);
    return found;
  }
  SideBySide both(reference, candidate, sequence);
  const int64_t ours = both.reference().layers(), theirs = both.other().layers();
  if (ours != theirs) {
    found.note = fmt::format("the reference has {} layers, the candidate {}", ours, theirs);
  }
  while (both.done() < both.layers()) {
    const std::string tap = both.tap();
    const SideBySide::Attention attention = both.run_layer();
    if (!attention.same_heads()) {
      found.note = fmt::format("{} has {} heads in the reference, {} in the candidate", tap,
                               attention.reference.size(1), attention.other.size(1));
      continue;
    }
    double apart = gap_of(attention, sequence).max().item<double>();
    if (!(apart <= allowed) && attention.reference.size(1) > 1) {
      const double placed = gap_of(in_best_order(attention), sequence).max().item<double>();
      if (placed < apart && placed <= allowed) {
        found.note = fmt::format("{}: heads are in another order, and compared in that", tap);
      }
      apart = std::isnan(apart) ? apart : std::min(apart, placed);
    }
    if (!(apart <= allowed)) {
      found.tap = tap;
      found.difference = apart;
      return found;
    }
  }
  found.tap = answer;
  found.difference = difference;
  return found;
}

}  // namespace pare
