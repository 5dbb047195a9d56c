// The claims about models trained without some of their matrices: every run that they plan can be begun, and their
// judges come to each verdict.

#include "pare/claims/trained_claims.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "pare/arch/count.h"
#include "tests/claims/invented_runs.h"

using namespace pare;

namespace {

TrainedRun invented(const std::string& variant, double loss, int64_t seed = 0, double rate = 2e-3) {
  TrainedRun run = test::invented_run(variant, seed, loss);
  run.name = fmt::format("{}-lr{:g}-seed{}", variant, rate, seed);
  run.rate = rate;
  run.steps = 600;
  run.validation = {{0, 5.5}, {200, 2.0}, {400, 1.5}, {600, loss}};
  return run;
}

std::string outcome_of(const Outcome& outcome) {
  CHECK(!outcome.compared.empty());
  CAPTURE(outcome.because);
  return to_words(outcome.verdict);
}

const Trial small_trial{.scale = ClaimScale::small};

std::string measured_of(const Outcome& outcome, const std::string& what) {
  for (const Compared& row : outcome.compared) {
    if (row.what == what) {
      return row.measured;
    }
  }
  return "no such row";
}

// Of a row of a table.
std::string note_of(const Outcome& outcome, size_t table, const std::string& name) {
  const ClaimTable& of = outcome.tables.at(table);
  const auto row = std::find(of.names.begin(), of.names.end(), name);
  return row == of.names.end() ? "no such row" : of.notes.at(row - of.names.begin());
}

std::string of_queries(std::vector<TrainedRun> runs) {
  return outcome_of(test::judged_by("query-elimination", small_trial, {std::move(runs), {}}));
}

}  // namespace

TEST_CASE("every planned run has a configuration that can be read, and a name of its own") {
  for (const ClaimScale scale : {ClaimScale::small, ClaimScale::full}) {
    for (const char* claim : {"query-elimination", "skipless", "attention-only"}) {
      test::check_plan(test::plan_of(claim, {.scale = scale}));
    }
  }
}

TEST_CASE("query elimination: in full the forms have as many parameters as in Table 2") {
  std::map<std::string, int64_t> parameters;
  for (const PlannedRun& run : test::plan_of("query-elimination", {.scale = ClaimScale::full})) {
    parameters[run.variant] = count(train_config_from_json(run.config, run.name(), {}).architecture).total;
  }
  const auto millions = [&](const std::string& variant) { return static_cast<double>(parameters.at(variant)) / 1e6; };
  CHECK(millions("baseline") == doctest::Approx(124.37).epsilon(5e-5));
  CHECK(millions("smaller-mlp") == doctest::Approx(117.30).epsilon(5e-5));
  CHECK(millions("smaller-width") == doctest::Approx(117.92).epsilon(5e-5));
  CHECK(millions("no-query-half") == doctest::Approx(117.30).epsilon(5e-5));
  CHECK(millions("no-query-half-larger-mlp") == doctest::Approx(124.37).epsilon(5e-5));
}

namespace {

// A variant with a seed for each loss.
std::vector<TrainedRun> seeds(const std::string& variant, const std::vector<double>& losses, double rate = 2e-3) {
  std::vector<TrainedRun> runs;
  for (const double loss : losses) {
    runs.push_back(invented(variant, loss, std::ssize(runs), rate));
  }
  return runs;
}

std::vector<TrainedRun> together(std::vector<std::vector<TrainedRun>> lists) {
  std::vector<TrainedRun> all;
  for (const std::vector<TrainedRun>& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

}  // namespace

TEST_CASE("query elimination: holds, does not hold, undecided") {
  const std::vector<TrainedRun> base = seeds("baseline", {1.100, 1.102, 1.104});
  CHECK(of_queries({}) == "undecided");
  CHECK(of_queries(base) == "undecided");
  CHECK(of_queries(together({base, seeds("no-query", {1.2})})) == "undecided");  // one seed, however far
  CHECK(of_queries(together({base, seeds("no-query", {1.111, 1.112, 1.1151})})) == "does not hold");
  CHECK(of_queries(together({base, seeds("no-query", {1.101, 1.1031, 1.105})})) == "holds");
  CHECK(of_queries(together({base, seeds("no-query", {1.08, 1.09, 1.085})})) == "holds");
  // 0.004 ± 0.005: neither less than the margin nor more.
  CHECK(of_queries(together({base, seeds("no-query", {1.104, 1.108, 1.106})})) == "undecided");
  // Each is taken at its best rate, and at the scale of the scores that ends lower.
  CHECK(of_queries(together(
            {base, seeds("no-query", {1.2, 1.21, 1.22}), seeds("no-query", {1.101, 1.1031, 1.105}, 4e-3)})) == "holds");
  CHECK(of_queries(together(
            {base, seeds("no-query", {1.2, 1.21, 1.22}), seeds("no-query-half", {1.101, 1.1031, 1.105})})) == "holds");
  // What was trained at one rate may come lower at another: that is said.
  const Outcome uneven =
      test::judged_by("query-elimination", small_trial,
                      {together({base, seeds("baseline", {1.12}, 1e-3), seeds("no-query", {1.13}, 1e-3)}), {}});
  CHECK(measured_of(uneven, "W_Q = I") == "+0.0300 (one pair), fewer rates");
  // Under a condition a rate that its baseline has not is no advantage.
  const Outcome shared =
      test::judged_by("query-elimination", small_trial,
                      {together({base, seeds("no-query", {1.13}), seeds("baseline-last-rate", {1.1}),
                                 seeds("no-query-last-rate", {1.12}), seeds("no-query-last-rate", {1.0}, 4e-3)}),
                       {}});
  const ClaimTable& by_condition = shared.tables.at(1);
  REQUIRE(by_condition.names == std::vector<std::string>{"the paper's last rate"});
  CHECK(by_condition.rows.back()[1] == doctest::Approx(0.02));
  CHECK(by_condition.rows.back()[0] == 1.12);  // at the rate of that difference, not at its own best
  CHECK(by_condition.rows.back()[5] == 2e-3);
  // A stopped run has no say.
  std::vector<TrainedRun> stopped = together({base, seeds("no-query", {1.0})});
  stopped.back().stopped = "exploded";
  CHECK(of_queries(stopped) == "undecided");
  CHECK(outcome_of(test::judged_by("query-elimination", {.scale = ClaimScale::smoke},
                                   {together({base, seeds("no-query", {2, 2.1, 2.3})}), {}})) == "undecided");
}

TEST_CASE("query elimination: the loss of a form stands under its rate") {
  const Outcome judged = test::judged_by(
      "query-elimination", small_trial,
      {{invented("baseline", 1.1), invented("baseline", 1.2, 0, 4e-3), invented("no-query", 1.3, 0, 4e-3),
        invented("no-query", 1.4, 0, 8e-3), invented("no-key", 1.5)},
       {}});
  const auto table = std::find_if(judged.tables.begin(), judged.tables.end(), [](const ClaimTable& one) {
    return one.title.starts_with("Validation loss by learning rate");
  });
  REQUIRE(table != judged.tables.end());
  CHECK(table->columns == std::vector<std::string>{"0.002", "0.004", "0.008"});
  CHECK(table->names == std::vector<std::string>{"baseline", "W_Q = I"});  // one rate of W_K = I is in another table
  CHECK(std::isnan(table->rows[0][2]));
  CHECK(std::isnan(table->rows[1][0]));
  CHECK(table->rows[1][1] == 1.3);
  CHECK(table->rows[1][2] == 1.4);
}

TEST_CASE("query elimination: a condition under which it holds is a correction") {
  const std::vector<TrainedRun> usual =
      together({seeds("baseline", {1.100, 1.102, 1.104}), seeds("no-query", {1.111, 1.112, 1.1151})});
  const auto with = [&](const std::vector<TrainedRun>& more) {
    return test::judged_by("query-elimination", small_trial, {together({usual, more}), {}});
  };
  const std::vector<TrainedRun> wide = seeds("baseline-d768", {1.050, 1.052, 1.051});
  const Outcome equal = with(together({wide, seeds("no-query-d768", {1.051, 1.053, 1.0521})}));
  CHECK(outcome_of(equal) == "holds with a correction");
  CHECK(equal.because.find("it holds for half steps, width 768") != std::string::npos);
  CHECK(outcome_of(with(together({wide, seeds("no-query-d768", {1.050})}))) ==
        "does not hold");  // of one seed, nothing
  CHECK(outcome_of(with(together({wide, seeds("no-query-d768", {1.06, 1.04, 1.05})}))) == "does not hold");
  // Pairs of one seed, one condition and one rate.
  const Outcome pairs =
      with(together({wide, seeds("no-query-d768", {1.060, 1.051}), seeds("no-query-d768", {1.0}, 4e-3)}));
  CHECK(measured_of(pairs, "W_Q = I: pairs with a higher loss") == "4 of 5, median +0.0100");
  // What it costs against the width, a point for each pair.
  const auto by_width = [&](const std::vector<double>& at_768) {
    return measured_of(
        with(together({seeds("baseline-d256", {1.3, 1.31}), seeds("no-query-d256", {1.33, 1.341}),
                       seeds("baseline-half-steps", {1.2, 1.21}), seeds("no-query-half-steps", {1.22, 1.2305}),
                       seeds("baseline-d768", {1.050, 1.052, 1.051}, 1e-3), seeds("no-query-d768", at_768, 1e-3)})),
        "W_Q = I: slope by doubled width");
  };
  CHECK(by_width({1.056, 1.057, 1.0565}).starts_with("-0.01"));
  CHECK(by_width({1.2, 1.0, 1.1}).ends_with("(7 points)"));
}

TEST_CASE("an MLP in another basis: holds, does not hold, undecided") {
  const auto verdict = [](ClaimScale scale, std::vector<double> trained, std::vector<double> linear) {
    return to_words(judged(scale, rows_of_errors(scale, {std::move(trained), std::move(linear)})).verdict);
  };
  const std::vector<double> near = {0.05, 0.055, 0.052}, far = {0.08, 0.082, 0.081}, claimed = {0.12, 0.13, 0.125},
                            less = {0.0997, 0.1, 0.0994};
  CHECK(verdict(ClaimScale::small, near, claimed) == "holds");
  CHECK(verdict(ClaimScale::small, near, less) == "does not hold");  // which needs no training
  CHECK(verdict(ClaimScale::small, far, claimed) == "undecided");
  CHECK(verdict(ClaimScale::full, far, claimed) == "does not hold");
  CHECK(verdict(ClaimScale::full, {0.05, 0.09, 0.07}, claimed) == "undecided");  // too far apart
  CHECK(verdict(ClaimScale::full, {0.05}, {0.12}) == "undecided");
  CHECK(verdict(ClaimScale::smoke, near, claimed) == "undecided");
}

TEST_CASE("an MLP in another basis: the linear map is as far off as a Gaussian integral says, a wider MLP is exact") {
  const PaperClaim* claim = find_claim("mlp-basis-transfer");
  REQUIRE(claim != nullptr);
  const Outcome outcome = claim->measure({.seed = 3});
  // What no linear map has of GELU(u) = u / 2 + r(u), with r(u) = u erf(u / sqrt 2) / 2 and u of deviation 1/2.
  double residue = 0, weights = 0;
  for (double u = -4; u <= 4; u += 1e-3) {
    const double weight = std::exp(-2 * u * u), r = u * std::erf(u / std::sqrt(2.0)) / 2;
    residue += weight * r * r;
    weights += weight;
  }
  const double derived = std::sqrt(residue / weights / (2 + 1.0 / 16 + residue / weights));
  const double without = std::sqrt(residue / weights / (1 + 1.0 / 16 + residue / weights));
  CHECK(measured_of(outcome, "theory: linear map, as printed") == fmt::format("{:.1f} %", 100 * derived));
  CHECK(measured_of(outcome, "theory: linear map, without - x") == fmt::format("{:.1f} %", 100 * without));
  REQUIRE(outcome.tables.at(0).rows.size() == 2);
  for (const std::vector<double>& row : outcome.tables[0].rows) {  // in %
    CAPTURE(row[0]);
    CHECK(row[2] == doctest::Approx(100 * derived).epsilon(0.2));  // random matrices of width 16 and 24
    CHECK(row[3] < row[2]);
    CHECK(row[1] < 50);  // it learns
  }
  for (const std::vector<double>& row : outcome.tables.at(1).rows) {
    CHECK(row[3] < 1e-5);
  }
}

namespace {

std::vector<TrainedRun> skipless_runs(double plain, double shaped, double deep_plain, double deep_shaped) {
  std::vector<TrainedRun> runs = {invented("baseline-6layers", 1.2), invented("baseline-12layers", 1.15)};
  for (const char* form : {"fig1a", "fig1b", "fig1c", "fig1d"}) {
    for (const auto& [ending, loss] :
         {std::pair("-6layers", plain), std::pair("-shaped-6layers", shaped), std::pair("-12layers", deep_plain),
          std::pair("-shaped-12layers", deep_shaped)}) {
      runs.push_back(invented(form + std::string(ending), loss));
      runs.push_back(invented(form + std::string(ending), loss + 0.01, 1));
      runs.push_back(invented(form + std::string(ending), loss + 0.1, 0, 5e-4));
    }
  }
  return runs;
}

std::string of_skipless(std::vector<TrainedRun> runs) {
  return outcome_of(test::judged_by("skipless", small_trial, {std::move(runs), {}}));
}

}  // namespace

TEST_CASE("skipless: holds, holds corrected, does not hold, undecided") {
  CHECK(of_skipless({}) == "undecided");
  CHECK(of_skipless({invented("baseline-6layers", 1.2), invented("fig1a-6layers", 1.4)}) == "undecided");
  CHECK(of_skipless(skipless_runs(1.3, 1.3, 1.4, 1.4)) == "holds");
  CHECK(of_skipless(skipless_runs(3.0, 1.3, 3.0, 1.4)) == "holds with a correction");
  CHECK(of_skipless(skipless_runs(3.0, 3.0, 3.0, 3.0)) == "does not hold");
  std::vector<TrainedRun> one_of_each = skipless_runs(3.0, 3.0, 3.0, 3.0);
  std::erase_if(one_of_each, [](const TrainedRun& run) { return run.rate == 5e-4 || run.seed > 0; });
  CHECK(of_skipless(one_of_each) == "undecided");
  one_of_each = skipless_runs(1.3, 1.3, 1.4, 1.4);  // one seed shows neither that it trains
  std::erase_if(one_of_each, [](const TrainedRun& run) { return run.rate == 5e-4 || run.seed > 0; });
  CHECK(of_skipless(one_of_each) == "undecided");
  // One form that explodes in two runs spoils its group; in one it leaves it open.
  std::vector<TrainedRun> runs = skipless_runs(1.3, 1.3, 1.4, 1.4);
  std::erase_if(runs, [](const TrainedRun& run) {
    return run.variant == "fig1c-12layers" && (run.rate == 5e-4 || run.seed > 0);
  });
  for (TrainedRun& run : runs) {
    if (run.variant == "fig1c-12layers") {
      run.stopped = "exploded";
    }
  }
  CHECK(of_skipless(runs) == "holds");
  TrainedRun slower = invented("fig1c-12layers", 1.4, 0, 5e-4);
  slower.stopped = "exploded";
  runs.push_back(slower);
  const Outcome spoiled = test::judged_by("skipless", small_trial, {runs, {}});
  CHECK(outcome_of(spoiled) == "holds with a correction");
  CHECK(spoiled.because.find("it does not hold for plain attention, 12 layers (3 of 4 train, 1 do not)") !=
        std::string::npos);
  CHECK(note_of(spoiled, 1, "1c") == "explodes at step 600, lr 0.0005");
}

TEST_CASE("skipless: a form stands beside the usual model of as many layers") {
  const Outcome judged = test::judged_by("skipless", small_trial, {skipless_runs(1.3, 1.3, 1.4, 1.4), {}});
  REQUIRE(judged.tables.size() == 2);
  CHECK(judged.tables[0].names.front() == "baseline");
  CHECK(judged.tables[0].rows.back()[1] == doctest::Approx(0.1));  // of the seed that both have
  CHECK(judged.tables[1].names.front() == "baseline");
  CHECK(judged.tables[1].rows.back()[1] == doctest::Approx(0.25));
}

TEST_CASE("skipless: a run that ends at twice the least that it had diverged, and has no place among losses") {
  const Outcome judged = test::judged_by(
      "skipless", small_trial,
      {{invented("baseline-6layers", 1.2), invented("fig3a-6layers", 1.4), invented("fig3b-6layers", 3.1)}, {}});
  CHECK(note_of(judged, 0, "3a") == "yes");
  CHECK(judged.tables[0].rows[1][1] == doctest::Approx(0.2));
  CHECK(note_of(judged, 0, "3b") == "diverges to 3.10, lr 0.002 only");
  CHECK(judged.tables[0].names == std::vector<std::string>{"baseline", "3a", "3b"});
  // Of three seeds the one that diverged has no loss, whichever it is, and is told; a baseline that did is none.
  for (const int64_t astray : {0, 1, 2}) {
    std::vector<TrainedRun> runs;
    for (const int64_t seed : {0, 1, 2}) {
      runs.push_back(invented("baseline-6layers", 1.2 + 0.01 * static_cast<double>(seed), seed));
      runs.push_back(invented("fig3a-6layers", seed == astray ? 8 : 1.4 + 0.01 * static_cast<double>(seed), seed));
    }
    CHECK(note_of(test::judged_by("skipless", small_trial, {runs, {}}), 0, "3a") == "yes, 1 more stopped");
  }
  const Outcome without =
      test::judged_by("skipless", small_trial, {{invented("baseline-6layers", 8), invented("fig3a-6layers", 1.4)}, {}});
  CHECK(note_of(without, 0, "3a") == "1.4000");
  // It trained, and lost that again.
  const Outcome lost = test::judged_by("skipless", small_trial,
                                       {{invented("baseline-6layers", 1.2), invented("fig3a-6layers", 2.9)}, {}});
  CHECK(note_of(lost, 0, "3a") == "no, 1.50 before");
}

TEST_CASE("skipless: what the merge of a trained model came to is said") {
  TrainedRun run = invented("fig1a-6layers", 1.3);
  const auto said_of = [&](const nlohmann::ordered_json& seen) {
    run.seen = seen;
    const std::vector<TrainedRun> runs = {invented("baseline-6layers", 1.2), run};
    return measured_of(test::judged_by("skipless", small_trial, {runs, {}}), "1a merged, plain, 6 layers");
  };
  CHECK(said_of({{"before", 1000}, {"after", 850}, {"verdict", "proved"}, {"error", 2e-15}}) ==
        "150 (15.00 %), proved, 2e-15");
  CHECK(said_of({{"refused", "ill-conditioned"}}) == "refused");
}

TEST_CASE("attention only: holds, holds corrected, does not hold, undecided") {
  const auto judged = [](double apart, std::vector<TrainedRun> more) {
    TrainedRun exact = invented("mlp-float64", 2);
    exact.seen = {{"largest_difference", apart}, {"seconds_a_step", 0.01}, {"seconds_a_step_as_heads", 0.03}};
    more.push_back(exact);
    return outcome_of(test::judged_by("attention-only", small_trial, {more, {}}));
  };
  const std::vector<TrainedRun> mlps = seeds("mlp", {1.30, 1.302, 1.304});
  const auto with = [&](const std::vector<double>& heads) { return together({mlps, seeds("heads", heads)}); };
  CHECK(outcome_of(test::judged_by("attention-only", small_trial, {{}, {}})) == "undecided");
  CHECK(outcome_of(test::judged_by("attention-only", small_trial, {with({1.301, 1.3031, 1.305}), {}})) == "undecided");
  CHECK(judged(1e-12, {}) == "holds");  // it can be trained to match: from that start
  CHECK(judged(1e-12, with({1.301, 1.3031, 1.305})) == "holds");
  CHECK(judged(1e-12, with({1.35, 1.25, 1.3})) == "holds");  // too few to tell
  CHECK(judged(1e-12, with({1.4, 1.402, 1.405})) == "holds with a correction");
  CHECK(judged(1e-3, with({1.4, 1.402, 1.405})) == "does not hold");
}
