#pragma once
// Norms, and MLP skips with them, trained away by what the model says itself (pare/audit/norm_recipe.h), beside three
// controls of nearly the same size that keep both: a narrower MLP, the identity for W_Q, and a narrower model that
// starts from drawn numbers. All learn from the same teacher and samples.

#include "pare/claims/judged.h"
#include "pare/claims/plan.h"

namespace pare {

// Of a model that is stored among the corpora, or of one that the plan trains; `ending` ends the names of its variants.
struct OwnSamples {
  std::string ending;
  std::string corpus, trained;  // one of them: a folder's name, or a variant
  nlohmann::json architecture;  // of the model
  nlohmann::json data;          // samples, and a text to measure on
  int64_t smaller_mlp = 0;      // how wide an MLP has as many parameters less as W_Q has
  // Besides the recipe that audit prints, of which a run is long: short ones, so that five seeds can be compared.
  std::vector<std::string> short_run;
  std::vector<int64_t> seeds = {0, 1, 2, 3, 4, 5, 6};
};
OwnSamples own_samples_of_stories();
OwnSamples own_samples_of_bytes(const nlohmann::json& model, const std::string& baseline);

std::vector<PlanForm> forms_of(const OwnSamples& own);
// Short runs of every seed; whether skips that become neurons first cost less, of three; the recipes, of one, and what
// three times as many steps give.
std::vector<PlanLine> lines_of(const OwnSamples& own);

// What each costs above the model itself, what is left of it in float32 once it is rewritten, and what a text costs it.
ClaimTable table_of_own_samples(const TrainedRuns& runs, const OwnSamples& own, const std::string& title);

}  // namespace pare
