#pragma once
// The kinds of data that there are. `open_sequences` chooses.

#include <cstdint>
#include <memory>

#include "pare/train/batches.h"

namespace pare {

std::shared_ptr<const Sequences> text_sequences(const TrainConfig& config);       // causal_lm, masked_lm
std::shared_ptr<const Sequences> labelled_sequences(const TrainConfig& config);   // classifier of text
std::shared_ptr<const Sequences> image_sequences(const TrainConfig& config);      // classifier of images
std::shared_ptr<const Sequences> generated_sequences(const TrainConfig& config);  // sorting, copying, addition

// Random numbers by their number, not by their turn: what a sequence is made of does not depend on what was asked for
// before it.
uint64_t mixed(uint64_t seed, uint64_t number);
int64_t below(uint64_t random, int64_t limit);

}  // namespace pare
