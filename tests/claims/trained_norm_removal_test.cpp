// What norm-removal says of runs that nobody trained: each of its verdicts, and none without the runs that it needs.

#include "pare/claims/trained_claims.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "pare/algebra/morph_plan.h"
#include "pare/arch/presets.h"
#include "pare/train/config.h"
#include "tests/claims/invented_runs.h"

using namespace pare;

namespace {

// A variant with a seed for each loss.
void add(std::vector<TrainedRun>& runs, const std::string& variant, const std::vector<double>& losses,
         double rate = 1e-3) {
  for (size_t seed = 0; seed < losses.size(); ++seed) {
    runs.push_back(test::invented_run(variant, static_cast<int64_t>(seed), losses[seed], 0, 1000, rate));
  }
}

Outcome judged(const std::vector<TrainedRun>& runs, ClaimScale scale = ClaimScale::small) {
  return test::judged_by("norm-removal", {.scale = scale}, {runs, {}});
}

Architecture preset(const std::string& name) {
  return find_preset(name).value();
}

}  // namespace

TEST_CASE("norm-removal: within the margin it holds, beyond it does not, and three seeds may be too few") {
  std::vector<TrainedRun> runs;
  add(runs, "control", {1.1562, 1.1553, 1.1595});
  add(runs, "norms", {1.1582, 1.1593, 1.1611});  // +0.0020, +0.0040, +0.0016: 0.0025 ± 0.0032
  const Outcome few = judged(runs);
  CHECK(few.verdict == ClaimVerdict::undecided);
  CHECK(few.because.find(
            "+0.0025 ± 0.0032 (3 pairs), the 95 % interval includes 0 and the margin of 0.005; about 4 pairs") !=
        std::string::npos);
  runs.clear();
  add(runs, "control", {1.160, 1.162, 1.164, 1.166, 1.168});
  add(runs, "norms", {1.1622, 1.1649, 1.1661, 1.1684, 1.1706});
  const Outcome found = judged(runs);
  CHECK(found.verdict == ClaimVerdict::holds);
  CHECK(found.because.find(", within the margin of 0.005") != std::string::npos);
  for (TrainedRun& run : runs) {
    run.loss += run.variant == "norms" ? 0.02 : 0;
  }
  CHECK(judged(runs).verdict == ClaimVerdict::does_not_hold);
}

TEST_CASE("norm-removal: free in one setting and not in another is a correction that names both") {
  std::vector<TrainedRun> runs;
  add(runs, "control", {1.160, 1.162, 1.161});
  add(runs, "norms", {1.150, 1.152, 1.1511});
  add(runs, "control-stories260K", {1.578, 1.579, 1.577});
  add(runs, "norms-stories260K", {1.622, 1.6232, 1.621});
  const Outcome found = judged(runs);
  CHECK(found.verdict == ClaimVerdict::holds_corrected);
  CHECK(found.because.starts_with("no norms, 1,000 steps: -0.0100 ± "));
  CHECK(found.because.find(
            "it does not hold for no norms, stories260K (+0.0441 ± 0.0003 (3 pairs), above the margin of 0.005)") !=
        std::string::npos);
}

TEST_CASE("norm-removal: one seed says nothing, whatever the difference is") {
  std::vector<TrainedRun> runs;
  add(runs, "control", {1.160});
  add(runs, "norms", {1.180});
  CHECK(judged(runs).verdict == ClaimVerdict::undecided);
  add(runs, "control-few", {1.230, 1.232, 1.234});
  add(runs, "norms-few", {1.230, 1.2321, 1.234});
  const Outcome found = judged(runs);
  CHECK(found.verdict == ClaimVerdict::undecided);
  CHECK(found.because.find("+0.0200 (one pair), one seed only") != std::string::npos);
}

TEST_CASE("norm-removal: only rates that both were trained at are compared") {
  std::vector<TrainedRun> runs;
  add(runs, "control", {1.160, 1.162, 1.161});
  add(runs, "norms", {1.161, 1.163, 1.1621});
  add(runs, "control", {1.100, 1.102, 1.101}, 2e-3);
  CHECK(judged(runs).verdict == ClaimVerdict::holds);
  add(runs, "norms", {1.130, 1.132, 1.1311}, 2e-3);
  CHECK(judged(runs).verdict == ClaimVerdict::does_not_hold);
}

TEST_CASE("norm-removal: what is missing is no verdict, and what stopped is told") {
  CHECK(judged({}).verdict == ClaimVerdict::undecided);
  CHECK(!judged({}).compared.empty());
  std::vector<TrainedRun> runs;
  add(runs, "control", {1.160, 1.162});
  add(runs, "norms-few", {1.160, 1.162});
  CHECK(judged(runs).verdict == ClaimVerdict::undecided);
  add(runs, "norms", {9.0, 9.0});
  runs[4].stopped = runs[5].stopped = "training stopped";
  const Outcome found = judged(runs);
  CHECK(found.verdict == ClaimVerdict::does_not_hold);  // every seed is lost
  CHECK(found.because == "no norms, 1,000 steps: 2 of 2 seeds stopped");
  CHECK(std::count_if(found.compared.begin(), found.compared.end(),
                      [](const Compared& row) { return row.measured == "stopped"; }) == 2);
}

TEST_CASE("norm-removal: where a seed diverges without norms that is a cost, not a setting that nobody trained") {
  std::vector<TrainedRun> runs;
  add(runs, "control", {1.160, 1.162, 1.161});
  add(runs, "norms", {1.1601, 1.162, 1.161});
  add(runs, "control-few", {1.230, 1.232});
  add(runs, "norms-few", {1.230, 4.5});
  runs.back().validation = {{0, 1.8}, {100, 4.5}};
  const Outcome found = judged(runs);
  CHECK(found.verdict == ClaimVerdict::holds_corrected);
  CHECK(found.because.ends_with("; it does not hold for no norms, 200 steps (1 of 2 seeds stopped)"));
  // At another rate it trains: no cost.
  TrainedRun slower = test::invented_run("norms-few", 1, 1.232, 0, 1000, 5e-4);
  runs.push_back(slower);
  slower.variant = "control-few";
  runs.push_back(slower);
  CHECK(judged(runs).verdict == ClaimVerdict::holds);
  // Where it diverges in every seed there is no number at all.
  runs.erase(runs.end() - 2, runs.end());
  runs.erase(runs.end() - 2);
  CHECK(judged(runs).verdict == ClaimVerdict::holds_corrected);
}

TEST_CASE("norm-removal: at smoke scale it says nothing, whatever the numbers are") {
  std::vector<TrainedRun> runs;
  add(runs, "control", {1.160, 1.162});
  add(runs, "norms", {1.160, 1.162});
  CHECK(judged(runs, ClaimScale::smoke).verdict == ClaimVerdict::undecided);
}

TEST_CASE("norm-removal: what went exactly is shown, and counted in the figure") {
  std::vector<TrainedRun> runs;
  add(runs, "control", {1.160, 1.162});
  add(runs, "norms-and-skips", {1.2, 1.2});
  runs[2].seen = {{"before", 1000}, {"after", 900}, {"verdict", "proved"}, {"error", 1e-15}};
  const Outcome found = judged(runs);
  const auto row = std::find_if(found.compared.begin(), found.compared.end(), [](const Compared& compared) {
    return compared.what == "norms-and-skips: removed exactly";
  });
  REQUIRE(row != found.compared.end());
  CHECK(row->measured == "100 (10.00 %), proved, 1e-15");
  const Figure& figure = found.figures.back();
  REQUIRE(figure.series.size() == 1);
  CHECK(figure.series[0].x == std::vector<double>{1000, 900});
}

TEST_CASE("norm-removal: every run of every scale can be read, mixed, and started from one before it") {
  for (const ClaimScale scale : {ClaimScale::smoke, ClaimScale::small, ClaimScale::full}) {
    std::set<std::string> before;
    for (const PlannedRun& run : test::plan_of("norm-removal", {.scale = scale})) {
      CAPTURE(run.name());
      CHECK((run.from.empty() || before.contains(run.from)));
      CHECK((run.teacher.empty() || before.contains(run.teacher)));
      CHECK(before.insert(run.name()).second);
      nlohmann::json config = run.config;
      if (config.contains("from")) {  // a Llama that need not be there
        config.erase("from");
        config["architecture"] = "qwen2.5-0.5b";
      }
      if (config["data"].contains("samples")) {
        config["data"] = {{"shards", "samples"}};
      }
      const TrainConfig read = train_config_from_json(config, run.name(), preset);
      CHECK((run.from.empty() || run.passes.empty() == (read.architecture.blocks[0].mlp->skip)));
      if (read.morph.to) {
        plan_morph(read.architecture, *read.morph.to, run.name());
      }
    }
    CHECK(before.size() >= 10);
  }
}
