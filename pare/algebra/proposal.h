#pragma once
// What could be made of a model, and what stands in the way: the common language of all passes.

#include <optional>
#include <string>
#include <vector>

#include "pare/arch/tensor_id.h"
#include "pare/checkpoint/model.h"

namespace pare {

// One condition at one place. What was found is said in words, and measured where it is a number.
struct Precondition {
  std::string where;             // "blocks.3.attention.norm"
  std::optional<int64_t> block;  // the 3 in it
  std::string expected;          // "no norm on the stream"
  std::string found;             // "a layer norm"
  bool holds = false;
  std::string remedy;  // what would have to change; empty where it holds
  std::optional<double> measured, limit;
};
// One that does not hold.
inline Precondition in_the_way(const ModuleId& module, std::string expected, std::string found, std::string remedy) {
  return {.where = name_of(module),
          .block = module.block,
          .expected = std::move(expected),
          .found = std::move(found),
          .remedy = std::move(remedy)};
}

// The condition number of a matrix whose inverse the rewrite needs, as stored and in the best gauge of its heads.
struct Conditioning {
  ModuleId matrix;
  double stored = 1, gauged = 1;
  bool chosen = false;  // this is the one whose basis the stream takes
};

struct Proposal {
  Model after;  // what came in, where nothing can be done
  std::vector<Precondition> preconditions;
  std::vector<Conditioning> conditioning;
  std::vector<std::string> notes;
  bool over_budget = false;  // more could be done, and the notes say what: it would cost more than allowed
  double roundings = 0;      // how far rounding the result moves the answer, in unit roundoffs; see prediction.h
  // What it puts in place of what, and how far that is off; empty: it is exact. Kept only within an error that somebody
  // asked for.
  std::string approximation;
  bool applies = false;
};

}  // namespace pare
