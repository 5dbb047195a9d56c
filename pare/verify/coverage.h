#pragma once
// What the compared rows say something about: every tensor is explained by the proof, exercised by the rows, or not.

#include <map>
#include <string>
#include <vector>

#include "pare/proof/proof.h"
#include "pare/verify/answers.h"
#include "pare/verify/questions.h"

namespace pare {

struct Coverage {
  bool complete = true;
  int64_t longest = 0, context = 0;  // tokens of the longest sequence compared, and the most that there can be
  std::map<std::string, std::string> tensors;   // how each was covered
  std::vector<std::string> not_exercised = {};  // those that were not, with why
  // Rows of tables that the proof found to be others, and that no sequence reached.
  std::vector<std::string> known_other = {};
  bool every_token = true;  // where all of them had to be: each was asked alone, of every type
};

// What has to be asked so that everything that the proof leaves open is exercised: more rows than any such matrix has
// inputs, every row of a table that does not obey the map of the others, every position of such a table.
Wanted wanted_by(const Architecture& reference, const Architecture& candidate, const Proof& proof);

// What was asked: in one or more rounds.
struct Questions {
  const std::vector<Asked>& asked;
  bool every_token = false;  // whether all of them had to be, alone
  std::string bound;         // why no longer sequence could be
};
Coverage coverage_of(const Architecture& reference, const Architecture& candidate, const Proof& proof,
                     const Questions& questions);

}  // namespace pare
