#include "pare/audit/norm_recipe.h"

namespace pare {

const char* word(TrainedOff what) {
  return what == TrainedOff::norms ? "norms" : "norms and MLP skips";
}

// Half of the steps are for norms to leave: in an eighth of them the loss was seen to explode. Without MLP skips a
// projection of every layer can go, which has to be inverted for that: conditioning.weight keeps it well conditioned.
std::vector<std::string> keys_of_removal(TrainedOff what) {
  if (what == TrainedOff::norms) {
    return {"morph.to.norms=none", "morph.steps=6000"};
  }
  return {"morph.to.norms=none", "morph.to.mlp.skip=false", "morph.steps=4000", recipe_conditioning};
}

// Of a model of 10.9 million parameters every run without MLP skips at 0.003 stopped.
std::vector<std::string> keys_of_training(TrainedOff what, int64_t parameters) {
  constexpr int64_t small_model = 1'000'000;
  const char* const without_skips = parameters < small_model ? "optimiser.lr=0.003" : "optimiser.lr=0.001";
  return {"distillation.weight=1",
          "dtype=bfloat16",
          "batch=64",
          "steps=12000",
          what == TrainedOff::norms ? "optimiser.lr=0.002" : without_skips,
          "optimiser.min_lr=1e-5",
          "optimiser.betas=[0.9,0.99]",
          "optimiser.decay=0",
          "optimiser.clip=0.5",
          "evaluate.every=1000"};
}

}  // namespace pare
