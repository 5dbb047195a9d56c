#include "pare/verify/divergence.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/verify/affordable.h"
#include "pare/verify/side_by_side.h"

namespace pare {

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
