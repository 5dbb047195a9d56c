#include "pare/verify/divergence.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/support/error.h"

namespace pare {

Divergence first_divergence(const ComparedModel& reference, const ComparedModel& candidate, const Inputs& sequence,
                            const std::string& answer, double difference, double allowed) {
  Divergence found{.allowed = allowed};
  const std::vector<Inputs> worst = {sequence};
  Taps first_taps, second_taps;
  first_taps.record("blocks.*.attention.probabilities");
  second_taps.record("blocks.*.attention.probabilities");
  BlockwiseRun first(reference.model, reference.arithmetic, worst, &first_taps);
  BlockwiseRun second(candidate.model, candidate.arithmetic, worst, &second_taps);
  if (first.layers() != second.layers()) {
    found.note = fmt::format("the reference has {} layers, the candidate {}", first.layers(), second.layers());
  }
  while (first.done() < std::min(first.layers(), second.layers())) {
    const std::string tap = fmt::format("blocks.{}.attention.probabilities", first.done());
    first.run_layer();
    second.run_layer();
    const at::Tensor one = first_taps.recorded().at(tap), other = second_taps.recorded().at(tap);
    first_taps.clear();
    second_taps.clear();
    if (one.sizes() != other.sizes()) {
      found.note =
          fmt::format("{} has {} heads in the reference, {} in the candidate", tap, one.size(1), other.size(1));
      continue;
    }
    at::Tensor gap = (one.to(at::kDouble) - other.to(at::kDouble)).abs();
    if (worst[0].mask.defined()) {  // what padding looks at means nothing
      gap = gap.index_select(2, at::nonzero(worst[0].mask[0]).flatten());
    }
    const double apart = gap.max().item<double>();
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
