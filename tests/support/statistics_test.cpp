// Intervals against an integral of Student's density, figures of tables and sums by hand; what is said of them.

#include "pare/support/statistics.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

using namespace pare;

namespace {

// P(|t| < x) by Simpson's rule.
double integral_of_density(double x, double degrees) {
  const double scale =
      std::exp(std::lgamma((degrees + 1) / 2) - std::lgamma(degrees / 2)) / std::sqrt(degrees * std::numbers::pi);
  const auto density = [&](double t) { return scale * std::pow(1 + t * t / degrees, -(degrees + 1) / 2); };
  constexpr int parts = 20'000;
  const double h = x / parts;
  double sum = density(0) + density(x);
  for (int i = 1; i < parts; ++i) {
    sum += (i % 2 == 1 ? 4 : 2) * density(i * h);
  }
  return 2 * sum * h / 3;
}

std::vector<Observed> seeds(const std::vector<double>& values) {
  std::vector<Observed> found;
  for (const double value : values) {
    found.push_back({.seed = std::ssize(found), .data = "a", .value = value});
  }
  return found;
}

Estimate of(std::vector<double> differences) {
  return estimate_of(differences);
}

}  // namespace

TEST_CASE("Student's t: as in tables, and as its density integrates to") {
  const std::vector<std::pair<int64_t, double>> table = {{1, 12.7062047362}, {2, 4.3026527297},  {3, 3.1824463053},
                                                         {4, 2.7764451052},  {9, 2.2621571628},  {10, 2.2281388520},
                                                         {30, 2.0422724563}, {100, 1.9839715185}};
  for (const auto& [degrees, expected] : table) {
    CAPTURE(degrees);
    CHECK(student_t(0.95, degrees) == doctest::Approx(expected).epsilon(1e-9));
  }
  for (const int64_t degrees : {1, 2, 3, 4, 5, 8, 15, 40}) {
    for (const double confidence : {0.5, 0.9, 0.95, 0.99}) {
      CAPTURE(degrees);
      CHECK(integral_of_density(student_t(confidence, degrees), static_cast<double>(degrees)) ==
            doctest::Approx(confidence).epsilon(1e-7));
    }
  }
  CHECK(student_t(0.95, 9999) == doctest::Approx(1.9602).epsilon(1e-4));
}

TEST_CASE("three pairs that were called no cost are too few to tell") {
  const Estimate found = of({0.0020, 0.0040, 0.0016});
  CHECK(found.mean == doctest::Approx(0.0025333).epsilon(1e-4));
  CHECK(*found.deviation == doctest::Approx(0.0012858).epsilon(1e-4));  // squares by hand: 2.84e-7, 2.15e-6, 8.71e-7
  CHECK(*found.standard_error == doctest::Approx(0.0012858 / std::sqrt(3.0)).epsilon(1e-4));
  CHECK(in_short(found) == "+0.0025 ± 0.0032 (3 pairs)");
  CHECK(difference_of(found, {}) == Difference::too_few);
  CHECK(difference_of(found, 0.005) == Difference::too_few);
  CHECK(in_words(found, {}) == "too few to tell: +0.0025 ± 0.0032 (3 pairs); about 4 would");
  // At that deviation 4 pairs are enough, and 3 are not.
  CHECK(student_t(0.95, 3) * *found.deviation / 2 < found.mean);
}

TEST_CASE("equal needs a margin, lower and higher an interval without 0, and both are said where both are so") {
  const Estimate around = of({-0.001, 0.001, 0.0005, -0.0005});
  CHECK(difference_of(around, {}) == Difference::too_few);
  CHECK(difference_of(around, 0.005) == Difference::equal);
  CHECK(in_words(around, 0.005).starts_with("equal within 0.005: +0.0000 ± 0.0015 (4 pairs)"));
  const Estimate above = of({0.0030, 0.0031, 0.0032, 0.0031});
  CHECK(difference_of(above, {}) == Difference::higher);
  CHECK(difference_of(above, 0.005) == Difference::higher);
  CHECK(in_words(above, {}) == "higher: +0.0031 ± 0.0001 (4 pairs)");
  CHECK(in_words(above, 0.005) == "higher, yet equal within 0.005: +0.0031 ± 0.0001 (4 pairs)");
  CHECK(difference_of(of({-0.0030, -0.0031, -0.0032}), {}) == Difference::lower);
  // Four digits would print the interval as if it ended at 0, or as if there were none.
  CHECK(in_words(of({-0.00025098, -0.00032919, -0.00024176, -0.00075906, -0.00009783}), {}) ==
        "lower: -0.00034 ± 0.00031 (5 pairs)");
  CHECK(in_words(of({0.5, 0.500001}), {}) == "higher: +0.50000 ± 0.00001 (2 pairs)");
  // At the border: the whole interval is within a margin of just its end.
  const double end = around.interval->most;
  CHECK(is_within(around, end));
  CHECK_FALSE(is_within(around, std::nextafter(end, 0)));
  CHECK(difference_of(around, std::nextafter(end, 0)) == Difference::too_few);
  // More pairs sharpen: the same scatter, four times as many.
  std::vector<double> many;
  for (int i = 0; i < 4; ++i) {
    many.insert(many.end(), {0.0020 + i * 1e-7, 0.0040 + i * 1e-7, 0.0016 + i * 1e-7});
  }
  CHECK(difference_of(estimate_of(many), {}) == Difference::higher);
}

TEST_CASE("one pair, and pairs that are alike, say nothing") {
  CHECK(in_words(of({}), {}) == "no pair of one seed, data and order: nothing is told");
  CHECK(in_words(of({0.5}), 1) == "+0.5000, one pair says nothing: too few");
  CHECK(difference_of(of({0.5}), 1) == Difference::too_few);
  CHECK_FALSE(of({0, 0, 0}).interval);
  CHECK(difference_of(of({0, 0, 0}), 1) == Difference::too_few);
  // Equal on paper, and apart by the rounding of what they are differences of.
  CHECK_FALSE(of({1.3 - 1.1, 1.4 - 1.2, 1.5 - 1.3}).interval);
  CHECK_FALSE(pairs_needed(of({0, 0}), 1));
  CHECK(in_words(of({1, -1}), {}).ends_with("more than 10,000 would"));
}

TEST_CASE("runs are paired by seed, data and order; one that is there twice counts once") {
  const std::vector<Observed> first = seeds({1.0, 1.2, 1.5}), other = seeds({1.1, 1.4});
  CHECK(paired(other, first).size() == 2);
  CHECK(paired_difference(other, first).mean == doctest::Approx(0.15));
  std::vector<Observed> elsewhere = other;
  elsewhere[1].data = "b";
  CHECK(paired(elsewhere, first).size() == 1);
  elsewhere[0].seed = 7;
  CHECK(paired(elsewhere, first).empty());
  // A seed that was trained twice is one number; a copy of both sides under another seed is no second pair.
  std::vector<Observed> twice = other;
  twice.push_back({.seed = 0, .data = "a", .value = 1.3});
  CHECK(paired(twice, first)[0] == doctest::Approx(0.2));
  CHECK(paired(seeds({1.1, 1.1, 1.1}), seeds({1.0, 1.0, 1.0})).size() == 1);
}

TEST_CASE("quartiles as NumPy has them, and the interval of a median as in tables of the sign test") {
  const std::vector<double> numbers = {9, 1, 4, 16, 25, 36};
  const Quartiles q = quartiles_of(numbers);
  CHECK(q.count == 6);
  CHECK(q.lower == doctest::Approx(5.25));  // numpy.quantile([1, 4, 9, 16, 25, 36], [0.25, 0.5, 0.75])
  CHECK(q.median == doctest::Approx(12.5));
  CHECK(q.upper == doctest::Approx(22.75));
  CHECK(q.spread() == doctest::Approx(17.5 / 12.5));
  CHECK(quartiles_of(std::vector<double>{3}).upper == 3);
  // Which of the sorted numbers, counted from 1, by tables of the binomial distribution at 5 %.
  const std::vector<std::pair<int64_t, double>> table = {{5, 0},  {6, 1},  {8, 1},   {9, 2},   {11, 2},
                                                         {12, 3}, {20, 6}, {30, 10}, {50, 18}, {100, 40}};
  for (const auto& [count, rank] : table) {
    CAPTURE(count);
    std::vector<double> sorted;
    for (int64_t i = count; i >= 1; --i) {
      sorted.push_back(static_cast<double>(i));
    }
    const std::optional<Interval> interval = median_interval(sorted);
    REQUIRE(interval.has_value() == (rank > 0));
    if (interval) {
      CHECK(interval->least == rank);
      CHECK(interval->most == static_cast<double>(count) + 1 - rank);
    }
  }
}
