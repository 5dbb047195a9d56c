#pragma once
// Why a run went bad: where the first number is that is none, and what usually makes it so.

#include <string>

#include "pare/train/trainer.h"

namespace pare {

struct BadStep {
  int64_t step = 0;  // how often the weights had moved
  StepMeasure found;
  double loss_before = 0;  // of the step before, or 0 at the first
  double rate = 0;         // of the step before
};

// Words for people, without a full stop: "...: the output of blocks.3.mlp is not finite, ...; likely ...".
std::string diagnosis(const TrainConfig& config, const Trainer& trainer, const TrainBatch& batch, const BadStep& bad);

}  // namespace pare
