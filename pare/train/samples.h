#pragma once
// What a model says by itself: sequences that begin with a prefix, each further token drawn from softmax(logits / τ) of
// those before it. A model that is to stay what it was can learn from them alone, without a text that others have.

#include <nlohmann/json_fwd.hpp>

#include "pare/checkpoint/model_folder.h"
#include "pare/model/device.h"
#include "pare/train/config.h"
#include "pare/train/tokens.h"

namespace pare {

// The folder of the model that draws, and the keys that were left out, from what it is. InputError where it draws no
// text, a token of the prefix is none of its own, or a sequence is longer than it reads.
ModelFolder open_sampled(const TrainConfig& config);
SamplesConfig complete_samples(const TrainConfig& config, const ModelFolder& folder);

// Hands out sequence after sequence. Each token takes its random number from the seed, the sequence and its place:
// nothing depends on how many are drawn at once, but for logits so close that rounding decides.
void draw_samples(const Model& model, const SamplesConfig& samples, uint64_t seed, const Arithmetic& arithmetic,
                  const TakeTokens& take);

}  // namespace pare
