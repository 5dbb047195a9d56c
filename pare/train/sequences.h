#pragma once
// The kinds of data that there are. `open_sequences` chooses.

#include <cstdint>
#include <memory>

#include "pare/support/mixed_bits.h"
#include "pare/train/batches.h"

namespace pare {

std::shared_ptr<const Sequences> text_sequences(const TrainConfig& config);       // causal_lm, masked_lm
std::shared_ptr<const Sequences> labelled_sequences(const TrainConfig& config);   // classifier of text
std::shared_ptr<const Sequences> image_sequences(const TrainConfig& config);      // classifier of images
std::shared_ptr<const Sequences> generated_sequences(const TrainConfig& config);  // sorting, copying, addition

// Of random bits; `mixed` makes them by their number, so what a sequence is made of depends on no other.
int64_t below(uint64_t random, int64_t limit);

}  // namespace pare
