#pragma once
// How far two models are apart after each layer: for people to look at, nothing is decided by it.

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

}  // namespace pare
