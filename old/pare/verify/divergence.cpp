#include "pare/verify/divergence.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/support/error.h"

namespace pare {

namespace {

// The sequence with the largest difference; one that is not a number counts as infinite.
int64_t worst_sequence(const Asked& asked, const Comparison& compared) {
  const auto worst = [](const Rows& rows) {
    return at::nan_to_num(rows.difference, std::numeric_limits<double>::infinity()).argmax().item<int64_t>();
  };
  const int64_t row = worst(compared.rows);
  if (compared.pooled && compared.rows.difference[row].item<double>() == 0) {
    return worst(*compared.pooled);
  }
  return asked.sequence[row].item<int64_t>();
}

}  // namespace

Divergence first_divergence(const ComparedModel& reference, const ComparedModel& candidate, const Asked& asked,
                            const Comparison& compared, double allowed) {
  Divergence found{.allowed = allowed, .sequence = worst_sequence(asked, compared)};
  const std::vector<Inputs> worst = {sequence_of(asked, found.sequence)};
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
    const double difference = gap.max().item<double>();
    if (!(difference <= allowed)) {
      found.tap = tap;
      found.difference = difference;
      return found;
    }
  }
  const bool of_sequence =
      compared.pooled && metrics_of({compared.rows, std::nullopt}).max_relative_logit_error <= allowed;
  const bool encoder = reference.model.architecture.task == Task::encoder;
  found.tap = encoder ? (of_sequence ? "pooled" : "final") : (of_sequence ? "sequence_logits" : "logits");
  found.difference = metrics_of(compared).max_relative_logit_error;
  return found;
}

}  // namespace pare
