#pragma once
// What one tensor of the candidate alone does to the reference: for each that is stored differently, how far
// predictions move if it takes the place of the reference's and all others stay.

#include <span>
#include <string>
#include <vector>

#include "pare/verify/answers.h"
#include "pare/verify/text_statistics.h"

namespace pare {

struct TensorCost {
  std::string tensor;  // as the reference calls it
  WithError mean_kl;   // nats a row
  double max_kl = 0;
};

// Of tensors that both models have by these names and shapes. The largest cost first. Sequences are shared out. Reads
// both models once for a few tensors and a sequence; all else is computed side by side.
std::vector<TensorCost> costs_of_tensors(const ComparedModel& reference, const ComparedModel& candidate,
                                         std::span<const std::string> tensors, std::span<const Inputs> sequences,
                                         uint64_t seed, const Communicator& ranks = {});

}  // namespace pare
