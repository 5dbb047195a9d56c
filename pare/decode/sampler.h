#pragma once
// Which token comes next: logits to probabilities of the tokens that are left to choose from, and one of these. Every
// setting means what it means in transformers, and they act in its order, which is that of the fields.

#include <cstdint>
#include <span>
#include <vector>

namespace pare {

struct Sampling {
  double repetition_penalty = 1;  // logits of tokens seen before are divided by it, or multiplied where negative
  double temperature = 0;         // logits are divided by it; 0: always the most likely token
  int64_t top_k = 0;              // the k most likely, and any as likely as the last of them; 0: all
  double top_p = 1;               // the fewest most likely that have this probability together
  double min_p = 0;               // those at least so likely, as a share of the most likely
};

// A token that may be drawn. Their probabilities sum to 1.
struct Candidate {
  int64_t id = 0;
  double probability = 0;
};

// InputError unless the largest logit is a number.
void check_logit(float largest);

// The candidates, by id; at temperature 0 the most likely alone, the first of those. `seen`: all tokens before.
// InputError where the logits are not numbers.
std::vector<Candidate> candidates(std::span<const float> logits, std::span<const int64_t> seen,
                                  const Sampling& sampling);

// The first whose share of all probability, with those before it, is more than `number`, from 0 up to 1.
int64_t drawn(std::span<const Candidate> candidates, double number);

// The natural logarithm of a token's probability by the logits themselves, before any setting.
double log_probability(std::span<const float> logits, int64_t id);

}  // namespace pare
