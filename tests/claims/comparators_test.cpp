// The four comparators at their borders, and the rule that makes a verdict of what they found.

#include "pare/claims/comparators.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "pare/claims/plan.h"

using namespace pare;

namespace {

Estimate between(double least, double most, int64_t count = 5) {
  return {.count = count, .mean = (least + most) / 2, .deviation = 1e-3, .interval = Interval{least, most}};
}

std::string shown(double number) {
  return fmt::format("{:g}", number);
}

}  // namespace

TEST_CASE("equal within a margin: no more above for all of the interval, lower is as good, else too few") {
  const auto found = [](const Estimate& difference) { return equal_within("", difference, 0.005).found; };
  CHECK(found(between(-0.001, 0.005)) == Found::holds);
  CHECK(found(between(0.001, 0.005)) == Found::holds);  // higher, yet within
  CHECK(found(between(-0.1, -0.05)) == Found::holds);
  CHECK(found(between(-0.001, std::nextafter(0.005, 1))) == Found::too_few);
  CHECK(found(between(0.005, 0.007)) == Found::too_few);
  CHECK(found(between(std::nextafter(0.005, 1), 0.007)) == Found::fails);
  CHECK(found(estimate_of(std::vector<double>{0.1})) == Found::too_few);            // one pair
  CHECK(found(estimate_of(std::vector<double>{0.1, 0.1, 0.1})) == Found::too_few);  // alike
  CHECK(equal_within("", {}, 0.005).words == "not trained yet");
  CHECK(equal_within("", between(0.001, 0.007), 0.005).words.find("interval includes the margin of 0.005") !=
        std::string::npos);
  CHECK(equal_within("", between(-0.001, 0.007), 0.005).words.find("interval includes 0 and the margin of 0.005") !=
        std::string::npos);
  CHECK(equal_within("", estimate_of(std::vector<double>{0.1}), 0.005).words == "+0.1000 (one pair), one seed only");
}

TEST_CASE("ranked: the interval excludes 0, on that side") {
  const auto found = [](const Estimate& difference) { return ranked("", difference, ClaimedTrend::falls).found; };
  CHECK(found(between(-0.2, -0.1)) == Found::holds);
  CHECK(found(between(0.1, 0.2)) == Found::fails);
  CHECK(found(between(-0.2, 0)) == Found::too_few);
  CHECK(found(between(0, 0.2)) == Found::too_few);
  CHECK(ranked("", between(0.1, 0.2), ClaimedTrend::rises).found == Found::holds);
  CHECK(found(estimate_of(std::vector<double>{-1.0})) == Found::too_few);
}

TEST_CASE("threshold: all of the interval on one side, with what else scatters; an exact number has none") {
  const auto found = [](const Estimate& mean, Bound bound, double also = 0) {
    return threshold("", mean, {bound, 2}, shown, also).found;
  };
  CHECK(found(between(1, 2), Bound::at_most) == Found::holds);
  CHECK(found(between(1, std::nextafter(2, 3)), Bound::at_most) == Found::too_few);
  CHECK(found(between(2, 3), Bound::at_most) == Found::too_few);
  CHECK(found(between(2.1, 3), Bound::at_most) == Found::fails);
  CHECK(found(between(2, 3), Bound::at_least) == Found::holds);
  CHECK(found(between(1, 1.9), Bound::at_least) == Found::fails);
  // 3 and 4 make 5: the interval reaches from -2.5 to 7.5.
  CHECK(found(between(-0.5, 5.5), Bound::at_least, 4) == Found::too_few);
  CHECK(threshold("", between(-0.5, 5.5), {Bound::at_least, 2}, shown, 4).words == "2.5 (-2.5 to 7.5), undecided");
  CHECK(threshold("", estimate_of(std::vector<double>{9.0}), {Bound::at_most, 2}, shown).words == "9, one run");
  CHECK(exact_limit("", 2, {Bound::at_most, 2}, shown).found == Found::holds);
  CHECK(exact_limit("", 2.01, {Bound::at_most, 2}, shown).found == Found::fails);
  CHECK(exact_limit("", 2, {Bound::at_least, 2}, shown).found == Found::holds);
}

TEST_CASE("trend: the slope of least squares and its interval, by hand") {
  // y = 1, 3, 2, 5 at x = 0, 1, 2, 3: slope 5.5 / 5, residues -0.1, 0.8, -1.3, 0.6.
  const std::vector<double> x = {0, 1, 2, 3}, y = {1, 3, 2, 5}, fallen = {9, 6.1, 2.9, 0};
  const Estimate slope = slope_of(x, y);
  CHECK(slope.mean == doctest::Approx(1.1));
  CHECK(*slope.standard_error == doctest::Approx(std::sqrt((0.01 + 0.64 + 1.69 + 0.36) / 2 / 5)));
  CHECK(slope.half_width() == doctest::Approx(4.30265273 * *slope.standard_error));
  CHECK(trend("", x, y, ClaimedTrend::rises).found == Found::too_few);
  CHECK(trend("", x, fallen, ClaimedTrend::falls).found == Found::holds);
  CHECK(trend("", x, fallen, ClaimedTrend::rises).found == Found::fails);
  CHECK(trend("", {}, {}, ClaimedTrend::falls).words == "not trained yet");
  CHECK(trend("", std::vector<double>{1, 2}, std::vector<double>{1, 2}, ClaimedTrend::rises).found == Found::too_few);
  CHECK(trend("", x, x, ClaimedTrend::rises).found == Found::too_few);  // no scatter to judge by
}

TEST_CASE("the verdict: the headline decides, and what is further corrects it") {
  const ClaimFinding holds{"a", Found::holds, "1"}, fails{"b", Found::fails, "2"}, open{"c", Found::too_few, "3"};
  CHECK(verdict_of({holds}) == ClaimVerdict::holds);
  CHECK(verdict_of({holds, {open, holds}}) == ClaimVerdict::holds);
  CHECK(verdict_of({holds, {open, fails}}) == ClaimVerdict::holds_corrected);
  CHECK(verdict_of({fails, {open, fails}}) == ClaimVerdict::does_not_hold);
  CHECK(verdict_of({fails, {open, holds}}) == ClaimVerdict::holds_corrected);
  CHECK(verdict_of({open, {fails, holds}}) == ClaimVerdict::undecided);
  CHECK(all_of("", {holds, open}).found == Found::too_few);
  CHECK(all_of("", {holds, open, fails}).found == Found::fails);
  CHECK(all_of("", {holds, holds}).found == Found::holds);
  CHECK(any_of("", {fails, open}).found == Found::too_few);
  CHECK(any_of("", {fails, open, holds}).found == Found::holds);
  CHECK(any_of("", {fails}).found == Found::fails);
  CHECK(all_of("", {}).found == Found::too_few);
  Outcome said;
  decide(ClaimScale::small, {holds, {fails, open}}, said);
  CHECK(said.because == "a: 1; it does not hold for b (2); 1 further comparison is undecided");
  Outcome smoke;
  decide(ClaimScale::smoke, {holds}, smoke);
  CHECK(smoke.verdict == ClaimVerdict::undecided);
}

TEST_CASE("a plan is a table: each form under each condition, by seed and rate, once") {
  const nlohmann::json config = {{"steps", 1}, {"optimiser", {{"lr", 0.1}}}};
  PlanTable table{.forms = {{.id = "base"}, form_of("more", "", {{"steps", 2}}), {.id = "on", .starts = true}},
                  .conditions = {{.ending = "", .config = config, .rates = {0.1, 0.2}, .start = "base"},
                                 {.ending = "-x", .config = config, .rates = {0.3}, .start = "base-x"}},
                  .lines = {{.forms = {"base"}, .conditions = {"", "-x"}, .seeds = {0, 1}},
                            {.forms = {"base", "more"}, .conditions = {"", "-x"}, .rates = {1}},
                            {.forms = {"base", "on"}, .seeds = {1}}}};
  table.forms[0].look = [](const std::filesystem::path&) { return nlohmann::ordered_json(); };
  const std::vector<PlannedRun> plan = planned_runs(table);
  std::vector<std::string> names;
  for (const PlannedRun& run : plan) {
    names.push_back(run.name());
  }
  CHECK(names == std::vector<std::string>{"base-lr0.1-seed0", "base-x-lr0.3-seed0", "base-lr0.1-seed1",
                                          "base-x-lr0.3-seed1", "base-lr0.2-seed0", "more-lr0.2-seed0",
                                          "on-lr0.1-seed1"});
  CHECK(plan[5].config["steps"] == 2);
  CHECK(plan[6].from == "base-lr0.1-seed1");
  CHECK(plan[0].look);
  CHECK_FALSE(plan[2].look);  // at the first seed alone
}
