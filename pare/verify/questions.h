#pragma once
// What two models are asked: inputs from a file, or drawn at random from what the reference can read, by a seed that
// nobody can prepare a model for, as many as can be afforded.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/model/executor.h"

namespace pare {

// What comes from a file.
struct Question {
  std::vector<Inputs> inputs;
  std::vector<int64_t> numbers;  // of each sequence, as the file counts them
  std::string kind;              // tokens, tensors or text; "random" where nothing is asked by a file
};

// ---- random inputs: a candidate has no say in what it is asked

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

// The first 8 bytes, big endian, of the SHA-256 of a text: a line "NAME HASH" for each file of the reference, by name,
// a line "--", the same of the candidate, and the seed as a decimal number. docs/formats.md says how to repeat it from
// a certificate. Paths have no part in it. Reads all of both models, where nobody asked for their hashes before.
uint64_t drawn_seed(const ModelFolder& reference, const ModelFolder& candidate, uint64_t seed);

// ---- what may be asked without a bill that nobody expects

struct LongestSequence {
  int64_t tokens = 0;
  std::string bound;  // what stands against a longer one; empty: the context ends there
};

// The longest sequence that both models can be run on: half of the budget, two GiB where scores are held as a whole,
// and no more operations on scores than 2^37, or than what the budget's tokens cost anyway.
LongestSequence longest_affordable(const Architecture& reference, const Architecture& candidate, int64_t budget,
                                   at::Device device);

// Whether what every head attends to, in a sequence of so many tokens, can be looked at: at most half a GiB of it.
bool can_hold_attention(const Architecture& architecture, int64_t tokens);

// How many tokens may be asked alone, one after the other: half of the budget, or as many as cost 2^40 operations.
int64_t affordable_alone(const Architecture& reference, const Architecture& candidate, int64_t budget);

}  // namespace pare
