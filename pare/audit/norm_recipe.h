#pragma once
// How norms, and the skips around MLPs with them, are trained away: the model learns to stay what it is, from its own
// samples. The keys are those that experiments/norm-removal measured; audit prints no others.

#include <cstdint>
#include <string>
#include <vector>

namespace pare {

enum class TrainedOff { norms, norms_and_skips };

// "norms", "norms and MLP skips": in audit, in its JSON and in tables.
const char* word(TrainedOff what);

// Sequences that the model draws before: 16.8 million tokens where each is 513 long.
constexpr int64_t recipe_samples = 32768;

// What keeps matrices that a rewrite will invert well conditioned, where MLP skips go.
constexpr const char* recipe_conditioning = "conditioning.weight=0.05";

// KEY=VALUE of `pare train`, besides from, teacher and data: first what goes, then how it is trained, by the size of
// the model. Controls that change something else are trained with the second alone.
std::vector<std::string> keys_of_removal(TrainedOff what);
std::vector<std::string> keys_of_training(TrainedOff what, int64_t parameters);

}  // namespace pare
