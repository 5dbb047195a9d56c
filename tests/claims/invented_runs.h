#pragma once
// Runs that nobody trained, for judges; and plans whose configurations have to be readable.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "pare/claims/trained.h"
#include "pare/support/error.h"
#include "pare/train/config.h"

namespace pare::test {

inline TrainedRun invented_run(const std::string& variant, int64_t seed, double loss, double accuracy = 0,
                               int64_t parameters = 1000, double rate = 0.001) {
  TrainedRun run{.name = fmt::format("{}-lr{:g}-seed{}", variant, rate, seed), .variant = variant, .rate = rate};
  run.seed = seed;
  run.parameters = parameters;
  run.loss = loss;
  run.accuracy = accuracy;
  run.validation = {{0, 9}, {100, loss}};
  run.accuracies = {{0, 0.1}, {100, accuracy}};
  return run;
}

inline Outcome judged_by(const std::string& claim, const Trial& trial, const TrainedRuns& runs) {
  return find_claim(claim)->judge(trial, runs);
}

inline std::vector<PlannedRun> plan_of(const std::string& claim, const Trial& trial) {
  return find_claim(claim)->plan(trial);
}

// Every configuration is read, under a name of its own.
inline void check_plan(const std::vector<PlannedRun>& plan) {
  std::set<std::string> names;
  for (const PlannedRun& run : plan) {
    CAPTURE(run.name());
    CHECK(names.insert(run.name()).second);
    const TrainConfig config = train_config_from_json(
        run.config, run.name(),
        [](const std::string& word) -> Architecture { throw InputError("no Architecture is called " + word); });
    CHECK(config.steps > 0);
    CHECK(config.evaluate.every >= 200);
  }
}

}  // namespace pare::test
