#pragma once
// How a claim is decided: four comparators, each of which holds, fails or finds too few numbers to tell, and one rule
// that makes the verdict of them. A claim says what is compared, and within which margin.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pare/claims/claim.h"
#include "pare/support/statistics.h"

namespace pare {

enum class Found { holds, fails, too_few };

struct ClaimFinding {
  std::string what;
  Found found = Found::too_few;
  std::string words = "not trained yet";  // its numbers
};

// No more than the margin above the other, for all of the interval; lower is as good. It fails where all of the
// interval is above the margin.
ClaimFinding equal_within(const std::string& what, const Estimate& difference, double margin);

// The first is below the other; `rises` asks for above.
enum class ClaimedTrend { falls, rises };
ClaimFinding ranked(const std::string& what, const Estimate& difference, ClaimedTrend direction);

// A mean, for all of its interval, at most or at least a number; what else than the runs scatters by is added to the
// interval. An exact number has no interval, and needs none.
enum class Bound { at_most, at_least };
using Shown = std::function<std::string(double)>;
struct Limit {
  Bound bound = Bound::at_most;
  double number = 0;
};
ClaimFinding threshold(const std::string& what, const Estimate& mean, const Limit& limit, const Shown& shown,
                       double also = 0);
ClaimFinding exact_limit(const std::string& what, double number, const Limit& limit, const Shown& shown);

// The slope of a line of least squares through points, with its interval by Student's t.
Estimate slope_of(std::span<const double> x, std::span<const double> y);
ClaimFinding trend(const std::string& what, std::span<const double> x, std::span<const double> y,
                   ClaimedTrend direction);

ClaimFinding all_of(const std::string& what, const std::vector<ClaimFinding>& parts);  // words: of what decides
ClaimFinding any_of(const std::string& what, const std::vector<ClaimFinding>& parts);

// What the claim says, and the same in further settings or what it says besides.
struct ClaimFindings {
  ClaimFinding headline;
  std::vector<ClaimFinding> further = {};
};
// Undecided while there is too little to tell of the headline. It holds, or holds with a correction where something
// further fails; it does not hold, or does so where something further does: then with a correction.
ClaimVerdict verdict_of(const ClaimFindings& findings);
// The verdict and its sentence. At smoke scale nothing is decided.
void decide(ClaimScale scale, const ClaimFindings& findings, Outcome& outcome);

}  // namespace pare
