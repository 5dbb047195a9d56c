#pragma once
// Random inputs, drawn from what the reference can read. A candidate has no say in what it is asked.

#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/executor.h"

namespace pare {

// One sequence of up to 256 tokens, the others of up to 64, and one of 16 for the self test. Tokens are dealt like
// cards, so that a small vocabulary is seen whole, with repetitions of single tokens and of phrases between; sequences
// begin with the first and last ids. Some are padded, tokens have types. Of images every other one is white noise; the
// others are what people look at: white, black and coloured pages, ramps, blurred ones, and the spectrum of
// photographs.
std::vector<Inputs> draw_inputs(const Architecture& reference, int64_t sequences, uint64_t seed);

// What is still to be asked, beyond that.
struct Wanted {
  int64_t tokens = 0, sequences = 0;  // so many of each, at least
  int64_t longest = 0;                // one sequence as long as this
  std::vector<int64_t> first_cards;   // tokens that shall occur, before others
  std::vector<int64_t> cards;         // and these after them
  int64_t alone = 0;                  // so many of the cards alone, over all types, whatever the budget is
};
// As much of it as `budget` tokens allow.
std::vector<Inputs> draw_wanted(const Architecture& reference, const Wanted& wanted, int64_t budget, uint64_t seed);

}  // namespace pare
