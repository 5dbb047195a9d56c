#include "pare/claims/comparators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace pare {

ClaimFinding equal_within(const std::string& what, const Estimate& difference, double margin) {
  if (difference.count == 0) {
    return {what};
  }
  ClaimFinding finding{what, Found::too_few, in_words(difference, margin)};
  if (!difference.interval) {
    return finding;
  }
  if (difference.interval->most <= margin) {
    finding.found = Found::holds;
  } else if (difference.interval->least > margin) {
    finding.found = Found::fails;
  } else if (difference.interval->least > 0) {
    finding.words += fmt::format(", whether by more than {:g} is not told", margin);
  }
  return finding;
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
          in_words(difference, {})};
}

ClaimFinding threshold(const std::string& what, const Interval& interval, double mean, const Limit& limit,
                       const Shown& shown) {
  const bool at_most = limit.bound == Bound::at_most;
  const bool holds = at_most ? interval.most <= limit.number : interval.least >= limit.number;
  const bool fails = at_most ? interval.least > limit.number : interval.most < limit.number;
  return {what,
          holds   ? Found::holds
          : fails ? Found::fails
                  : Found::too_few,
          fmt::format("{} ({} to {}){}", shown(mean), shown(interval.least), shown(interval.most),
                      holds || fails ? "" : ", too few to tell")};
}

ClaimFinding threshold(const std::string& what, const Estimate& mean, const Limit& limit, const Shown& shown,
                       double also) {
  if (mean.count == 0) {
    return {what};
  }
  if (!mean.interval) {
    return {what, Found::too_few, fmt::format("{}, {}", shown(mean.mean), mean.count == 1 ? "one run" : "runs alike")};
  }
  const double half = std::hypot(mean.half_width(), also);
  return threshold(what, Interval{mean.mean - half, mean.mean + half}, mean.mean, limit, shown);
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
    return {what, Found::too_few, slope.count == 0 ? "not trained yet" : "too few points to tell"};
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
  std::copy_if(all.begin(), all.end(), std::back_inserter(those),
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
    outcome.because = fmt::format("nothing follows from smoke scale ({}: {})", headline.what, headline.words);
    return;
  }
  outcome.verdict = verdict_of(findings);
  outcome.because = headline.what + ": " + headline.words;
  for (const auto& [found, words] :
       {std::pair(Found::holds, "it holds for"), std::pair(Found::fails, "it fails for")}) {
    const std::vector<ClaimFinding> those = those_that(found, findings.further);
    if (headline.found != found && !those.empty()) {
      outcome.because += fmt::format("; {} {}", words, listed(those));
    }
  }
  const size_t open = those_that(Found::too_few, findings.further).size();
  outcome.because += open > 0 ? fmt::format("; in {} more too few to tell", open) : "";
}

}  // namespace pare
