#include "pare/claims/comparators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "pare/support/numbers.h"

namespace pare {

// Why the interval does not decide, and how many pairs would.
static std::string undecided_by(const Estimate& difference, double margin) {
  if (!difference.interval) {
    return difference.count == 1 ? "one seed only" : "all pairs alike";
  }
  const std::optional<int64_t> needed = pairs_needed(difference, margin);
  return fmt::format("the 95 % interval includes {}the margin of {:g}{}",
                     difference.interval->least > 0 ? "" : "0 and ", margin,
                     needed ? fmt::format("; about {} pairs would decide", with_commas(*needed)) : "");
}

ClaimFinding equal_within(const std::string& what, const Estimate& difference, double margin) {
  if (difference.count == 0) {
    return {what};
  }
  const Found found = !difference.interval                  ? Found::too_few
                      : difference.interval->most <= margin ? Found::holds
                      : difference.interval->least > margin ? Found::fails
                                                            : Found::too_few;
  return {what, found,
          fmt::format("{}, {}", in_short(difference),
                      found == Found::holds   ? fmt::format("within the margin of {:g}", margin)
                      : found == Found::fails ? fmt::format("above the margin of {:g}", margin)
                                              : undecided_by(difference, margin))};
}

ClaimFinding ranked(const std::string& what, const Estimate& difference, ClaimedTrend direction) {
  if (difference.count == 0) {
    return {what};
  }
  const Difference found = difference_of(difference, {});
  const Difference wanted = direction == ClaimedTrend::falls ? Difference::lower : Difference::higher;
  return {what,
          found == Difference::too_few ? Found::too_few
          : found == wanted            ? Found::holds
                                       : Found::fails,
          in_short(difference)};
}

ClaimFinding threshold(const std::string& what, const Estimate& mean, const Limit& limit, const Shown& shown,
                       double also) {
  if (mean.count == 0) {
    return {what};
  }
  if (!mean.interval) {
    return {what, Found::too_few, fmt::format("{}, {}", shown(mean.mean), mean.count == 1 ? "one run" : "runs alike")};
  }
  const double least = mean.mean - std::hypot(mean.mean - mean.interval->least, also),
               most = mean.mean + std::hypot(mean.interval->most - mean.mean, also);
  const bool at_most = limit.bound == Bound::at_most;
  const Found found = (at_most ? most <= limit.number : least >= limit.number) ? Found::holds
                      : (at_most ? least > limit.number : most < limit.number) ? Found::fails
                                                                               : Found::too_few;
  return {what, found,
          fmt::format("{} ({} to {}){}", shown(mean.mean), shown(least), shown(most),
                      found == Found::too_few ? ", undecided" : "")};
}

ClaimFinding exact_limit(const std::string& what, double number, const Limit& limit, const Shown& shown) {
  const bool holds = limit.bound == Bound::at_most ? number <= limit.number : number >= limit.number;
  return {what, holds ? Found::holds : Found::fails, shown(number)};
}

Estimate slope_of(std::span<const double> x, std::span<const double> y) {
  const int64_t count = std::ssize(x);
  Moments of_x, of_y;
  for (size_t i = 0; i < x.size(); ++i) {
    of_x.add(x[i]);
    of_y.add(y[i]);
  }
  if (count < 2 || !(of_x.squares > 0)) {
    return {.count = count};
  }
  double products = 0, left = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    products += (x[i] - of_x.mean) * (y[i] - of_y.mean);
  }
  const double slope = products / of_x.squares;
  for (size_t i = 0; i < x.size(); ++i) {
    const double residue = y[i] - of_y.mean - slope * (x[i] - of_x.mean);
    left += residue * residue;
  }
  Estimate found{.count = count, .mean = slope};
  if (count > 2 && left > 1e-18 * of_y.squares) {  // points of a line have no scatter to judge by
    found.standard_error = std::sqrt(left / static_cast<double>(count - 2) / of_x.squares);
    const double half = student_t(0.95, count - 2) * *found.standard_error;
    found.interval = Interval{slope - half, slope + half};
  }
  return found;
}

ClaimFinding trend(const std::string& what, std::span<const double> x, std::span<const double> y,
                   ClaimedTrend direction) {
  const Estimate slope = slope_of(x, y);
  if (!slope.interval) {
    return {what, Found::too_few, slope.count == 0 ? "not trained yet" : "too few points"};
  }
  const bool falls = slope.interval->most<0, rises = slope.interval->least> 0;
  const bool wanted = direction == ClaimedTrend::falls ? falls : rises,
             other = direction == ClaimedTrend::falls ? rises : falls;
  return {what,
          wanted  ? Found::holds
          : other ? Found::fails
                  : Found::too_few,
          fmt::format("{:+.2g} ± {:.2g} ({} points)", slope.mean, slope.half_width(), slope.count)};
}

namespace {

std::vector<ClaimFinding> those_that(Found found, const std::vector<ClaimFinding>& all) {
  std::vector<ClaimFinding> those;
  std::ranges::copy_if(all, std::back_inserter(those),
                       [found](const ClaimFinding& finding) { return finding.found == found; });
  return those;
}

std::string listed(const std::vector<ClaimFinding>& findings) {
  std::vector<std::string> words;
  for (const ClaimFinding& finding : findings) {
    words.push_back(finding.what + " (" + finding.words + ")");
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

ClaimFinding combined(const std::string& what, const std::vector<ClaimFinding>& parts, Found decisive,
                      Found otherwise) {
  for (const Found found : {decisive, Found::too_few}) {
    if (const std::vector<ClaimFinding> those = those_that(found, parts); !those.empty()) {
      return {what, found, listed(those)};
    }
  }
  return parts.empty() ? ClaimFinding{what} : ClaimFinding{what, otherwise, listed(parts)};
}

}  // namespace

ClaimFinding all_of(const std::string& what, const std::vector<ClaimFinding>& parts) {
  return combined(what, parts, Found::fails, Found::holds);
}

ClaimFinding any_of(const std::string& what, const std::vector<ClaimFinding>& parts) {
  return combined(what, parts, Found::holds, Found::fails);
}

ClaimVerdict verdict_of(const ClaimFindings& findings) {
  switch (findings.headline.found) {
    case Found::too_few:
      return ClaimVerdict::undecided;
    case Found::holds:
      return those_that(Found::fails, findings.further).empty() ? ClaimVerdict::holds : ClaimVerdict::holds_corrected;
    case Found::fails:
      return those_that(Found::holds, findings.further).empty() ? ClaimVerdict::does_not_hold
                                                                : ClaimVerdict::holds_corrected;
  }
  return ClaimVerdict::undecided;
}

void decide(ClaimScale scale, const ClaimFindings& findings, Outcome& outcome) {
  const ClaimFinding& headline = findings.headline;
  if (scale == ClaimScale::smoke) {
    outcome.because = fmt::format("smoke scale decides nothing ({}: {})", headline.what, headline.words);
    return;
  }
  outcome.verdict = verdict_of(findings);
  outcome.because = headline.what + ": " + headline.words;
  for (const auto& [found, words] :
       {std::pair(Found::holds, "it holds for"), std::pair(Found::fails, "it does not hold for")}) {
    const std::vector<ClaimFinding> those = those_that(found, findings.further);
    if (headline.found != found && !those.empty()) {
      outcome.because += fmt::format("; {} {}", words, listed(those));
    }
  }
  const size_t open = those_that(Found::too_few, findings.further).size();
  outcome.because +=
      open > 0 ? fmt::format("; {} further {} undecided", open, open == 1 ? "comparison is" : "comparisons are") : "";
}

}  // namespace pare
