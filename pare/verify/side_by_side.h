#pragma once
// Two models on one sequence, layer beside layer, with what their heads attend to: the one thing inside them that no
// change of basis touches. For people to look at: where models that differ begin to, and how far apart each layer is.

#include <span>
#include <string>
#include <vector>

#include "pare/verify/answers.h"

namespace pare {

// One layer, in running order. What cannot be compared is not a number.
struct LayerGap {
  std::vector<double> heads;      // the largest difference of an attention probability, over all sequences
  std::vector<double> attention;  // the same over all heads, for each sequence
  std::vector<double> residual;  // of what the layer leaves: ‖reference - other‖ / ‖reference‖, for each sequence
};

struct LayerGaps {
  std::vector<LayerGap> layers;
  std::string note;  // what could not be compared, and why; empty: everything could
};

// Each sequence is run alone. Attention is the same in every basis and gauge, as long as heads keep their order; the
// stream is compared as it is stored, and shows a change of basis as well as an error.
LayerGaps layer_gaps(const ComparedModel& reference, const ComparedModel& other, std::span<const Inputs> sequences);

// The first place where models differ by more than is allowed, among those that a change of basis leaves alone.
struct Divergence {
  std::string tap;
  double difference = 0, allowed = 0;
  int64_t sequence = 0;  // the worst one
  std::string note;      // what could not be compared; empty: everything could
};

// Runs one sequence through both models, layer beside layer: attention probabilities by their largest absolute
// difference, heads in the order that fits best, then what the models say, by `difference`.
Divergence first_divergence(const ComparedModel& reference, const ComparedModel& candidate, const Inputs& sequence,
                            const std::string& answer, double difference, double allowed);

}  // namespace pare
