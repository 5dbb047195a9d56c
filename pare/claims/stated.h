#pragma once
// Everything that the papers claim, in one list: what an experiment of its own measures, what a test computes anew, and
// what nobody here has measured.

#include <optional>
#include <string>
#include <vector>

#include "pare/claims/claim.h"

namespace pare {

// Where numbers and verdicts of claims without an experiment are computed, and held against the list: a test case each.
constexpr const char* tests_of_stated = "tests/claims/stated_test.cpp";

struct StatedClaim {
  std::string name;  // of the experiment, or of the pass or page that shows it; empty: none does
  Paper paper = Paper::query_elimination;
  std::string place, says;
  std::optional<ClaimVerdict> verdict = {};  // nothing: not measured
  std::string number = {};                   // that decides it, as `page` has it; empty: the test alone does
  std::string page = {};                     // from the root of the project; empty: none
  std::string test = {};                     // that computes both, "FILE: CASE"; an experiment has its own
  std::string would_take = {};  // to measure it, where nobody has: what is missing, and how long it would run
  bool is_experiment() const { return find_claim(name) != nullptr && test.empty(); }
};

// Paper by paper, experiments first.
std::vector<StatedClaim> stated_claims();
std::string to_words(const std::optional<ClaimVerdict>& verdict);  // "not measured" where there is none
std::string tally_of_claims();  // "54 claims: 14 hold, 17 hold with a correction, ..."

}  // namespace pare
