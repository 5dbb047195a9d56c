#include "pare/support/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "pare/support/error.h"
#include "pare/support/numbers.h"

namespace pare {

void Moments::add(double value) {
  ++count;
  const double distance = value - mean;
  mean += distance / static_cast<double>(count);
  squares += distance * (value - mean);
}

std::optional<double> Moments::deviation() const {
  return count < 2 ? std::nullopt : std::optional(std::sqrt(squares / static_cast<double>(count - 1)));
}

namespace {

constexpr double confidence_of_all = 0.95;
constexpr int64_t most_pairs = 10'000;  // that anybody is told to train
// Differences that are equal on paper differ by the rounding of what they are taken from.
constexpr double alike = 1e-9;

// The chance that |t| is less than sqrt(degrees) tan(angle): Abramowitz and Stegun 26.7.3 and 26.7.4.
double chance_within(double angle, int64_t degrees) {
  const double cosine = std::cos(angle), sine = std::sin(angle);
  const bool odd = degrees % 2 == 1;
  double term = odd ? cosine : 1, sum = degrees == 1 ? 0 : term;
  for (int64_t k = odd ? 3 : 2; k < degrees; k += 2) {
    term *= cosine * cosine * static_cast<double>(k - 1) / static_cast<double>(k);
    sum += term;
  }
  return odd ? 2 / std::numbers::pi * (angle + sine * sum) : sine * sum;
}

double half_width_of(double deviation, int64_t count) {
  return student_t(confidence_of_all, count - 1) * deviation / std::sqrt(static_cast<double>(count));
}

std::string pairs_words(int64_t count) {
  return count == 1 ? "one pair" : fmt::format("{} pairs", count);
}

}  // namespace

double student_t(double confidence, int64_t degrees) {
  PARE_CHECK(degrees > 0 && confidence > 0 && confidence < 1, "a quantile of Student's t");
  double low = 0, high = std::numbers::pi / 2;
  for (int step = 0; step < 100 && low < high; ++step) {
    const double middle = (low + high) / 2;
    (chance_within(middle, degrees) < confidence ? low : high) = middle;
  }
  return std::sqrt(static_cast<double>(degrees)) * std::tan((low + high) / 2);
}

Quartiles quartiles_of(std::span<const double> values) {
  PARE_CHECK(!values.empty(), "quartiles of something");
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const auto at = [&sorted](double share) {
    const double place = share * static_cast<double>(sorted.size() - 1);
    const size_t below = static_cast<size_t>(place), above = std::min(below + 1, sorted.size() - 1);
    return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
  };
  return {.count = std::ssize(sorted), .lower = at(0.25), .median = at(0.5), .upper = at(0.75)};
}

std::optional<Interval> median_interval(std::span<const double> values) {
  const int64_t n = std::ssize(values);
  // The chance that at most k of n numbers lie below the median, and as many above: tosses of a coin.
  double outside = 0;
  int64_t dropped = 0;  // numbers at either end that the interval leaves out
  for (int64_t k = 0; 2 * k < n; ++k) {
    const double size = static_cast<double>(n), below = static_cast<double>(k);
    outside += 2 * std::exp(std::lgamma(size + 1) - std::lgamma(below + 1) - std::lgamma(size - below + 1) -
                            size * std::numbers::ln2);
    if (outside > 1 - confidence_of_all) {
      break;
    }
    dropped = k + 1;
  }
  if (dropped == 0) {
    return std::nullopt;
  }
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  return Interval{.least = sorted[dropped - 1], .most = sorted[n - dropped]};
}

Estimate estimate_of(std::span<const double> values) {
  Moments sample;
  double largest = 0;
  for (const double value : values) {
    sample.add(value);
    largest = std::max(largest, std::abs(value));
  }
  Estimate found{.count = sample.count, .mean = sample.mean};
  const std::optional<double> deviation = sample.deviation();
  if (!deviation || !(*deviation > alike * largest)) {
    return found;
  }
  const double half = half_width_of(*deviation, found.count);
  found.deviation = deviation;
  found.standard_error = *deviation / std::sqrt(static_cast<double>(found.count));
  found.interval = Interval{found.mean - half, found.mean + half};
  return found;
}

std::vector<double> paired(std::span<const Observed> of, std::span<const Observed> reference) {
  using Keyed = std::map<std::pair<int64_t, std::string>, Moments>;
  const auto keyed = [](std::span<const Observed> runs) {
    Keyed found;
    for (const Observed& run : runs) {
      found[{run.seed, run.data}].add(run.value);
    }
    return found;
  };
  const Keyed ours = keyed(of), theirs = keyed(reference);
  std::vector<double> differences;
  std::set<std::pair<double, double>> seen;
  for (const auto& [key, sample] : ours) {
    const auto other = theirs.find(key);
    if (other != theirs.end() && seen.emplace(sample.mean, other->second.mean).second) {
      differences.push_back(sample.mean - other->second.mean);
    }
  }
  return differences;
}

Estimate paired_difference(std::span<const Observed> of, std::span<const Observed> reference) {
  return estimate_of(paired(of, reference));
}

bool is_within(const Estimate& estimate, double margin) {
  return estimate.interval && estimate.interval->least >= -margin && estimate.interval->most <= margin;
}

Difference difference_of(const Estimate& estimate, const std::optional<double>& margin) {
  if (estimate.interval && estimate.interval->most < 0) {
    return Difference::lower;
  }
  if (estimate.interval && estimate.interval->least > 0) {
    return Difference::higher;
  }
  return margin && is_within(estimate, *margin) ? Difference::equal : Difference::too_few;
}

std::optional<int64_t> pairs_needed(const Estimate& estimate, const std::optional<double>& margin) {
  const double away = std::abs(estimate.mean), wanted = margin ? std::max(away, *margin - away) : away;
  if (!estimate.deviation || !(half_width_of(*estimate.deviation, most_pairs) < wanted)) {
    return std::nullopt;
  }
  int64_t too_few = 1, enough = most_pairs;  // the interval shrinks with every pair
  while (enough - too_few > 1) {
    const int64_t middle = (too_few + enough) / 2;
    (half_width_of(*estimate.deviation, middle) < wanted ? enough : too_few) = middle;
  }
  return enough;
}

std::string in_words(const Estimate& estimate, const std::optional<double>& margin) {
  if (!estimate.interval) {
    return estimate.count == 0 ? "no pair of one seed, data and order: nothing is told"
           : estimate.count == 1
               ? fmt::format("{:+.4f}, one pair says nothing: too few", estimate.mean)
               : fmt::format("{:+.4f}, {} pairs that are alike say nothing: too few", estimate.mean, estimate.count);
  }
  const std::string numbers = in_short(estimate);
  const Difference difference = difference_of(estimate, margin);
  const std::string within = margin && is_within(estimate, *margin) ? fmt::format("equal within {:g}", *margin) : "";
  switch (difference) {
    case Difference::equal:
      return fmt::format("{}: {}", within, numbers);
    case Difference::lower:
    case Difference::higher:
      return fmt::format("{}{}: {}", to_word(difference), within.empty() ? "" : ", yet " + within, numbers);
    case Difference::too_few:
      break;
  }
  const std::optional<int64_t> needed = pairs_needed(estimate, margin);
  return fmt::format("too few to tell: {}; {}", numbers,
                     needed ? fmt::format("about {} would", with_commas(*needed))
                            : fmt::format("more than {} would", with_commas(most_pairs)));
}

std::string in_short(const Estimate& estimate) {
  if (estimate.count == 0) {
    return "no pair";
  }
  // As many digits as show on which side of 0 the interval ends, and that there is one.
  const double half = estimate.interval ? estimate.half_width() : 0;
  const auto in_units = [](double value, int decimals) { return std::round(std::abs(value) * std::pow(10, decimals)); };
  constexpr int most = 9;
  int decimals = 4;
  while (half > 0 && decimals < most &&
         (in_units(half, decimals) == 0 || in_units(half, decimals) == in_units(estimate.mean, decimals))) {
    ++decimals;
  }
  return fmt::format("{:+.{}f}{} ({})", estimate.mean, decimals,
                     estimate.interval ? fmt::format(" ± {:.{}f}", half, decimals) : "", pairs_words(estimate.count));
}

std::string to_word(Difference difference) {
  switch (difference) {
    case Difference::equal:
      return "equal";
    case Difference::lower:
      return "lower";
    case Difference::higher:
      return "higher";
    case Difference::too_few:
      return "too few";
  }
  PARE_UNREACHABLE("a difference");
}

void Spread::add(double value, const char* reason_if_not_finite) {
  if (!std::isfinite(value)) {
    add_undefined(reason_if_not_finite);
    return;
  }
  Moments::add(value);
  least = std::min(least, value);
  most = std::max(most, value);
}

void Spread::add_undefined(const std::string& why) {
  if (undefined == 0) {
    reason = why;
  }
  ++undefined;
}

// Chan, Golub and LeVeque 1979; of nothing before, the others to the bit.
void Spread::add(const Spread& others) {
  if (undefined == 0) {
    reason = others.reason;
  }
  undefined += others.undefined;
  if (others.count == 0) {
    return;
  }
  const double before = static_cast<double>(count), after = static_cast<double>(others.count);
  const double distance = others.mean - mean, share = after / (before + after);
  mean = count == 0 ? others.mean : mean + distance * share;
  squares = count == 0 ? others.squares : squares + others.squares + distance * distance * before * share;
  count += others.count;
  least = std::min(least, others.least);
  most = std::max(most, others.most);
}

}  // namespace pare
