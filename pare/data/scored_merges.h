#pragma once
// SentencePiece's byte-pair encoding: a file has no list of merges, but a score for each token.

#include <string>
#include <vector>

#include "pare/data/bpe.h"

namespace pare {

struct ScoredToken {
  std::string text;
  float score = 0;
  bool joins = true;  // pairs become it; not a byte, nor a special token
};

// Every way to join two tokens to a third, the better the higher its score. The number of a token is its id.
std::vector<BpeMerge> scored_merges(const std::vector<ScoredToken>& tokens, const Vocabulary& vocabulary);

}  // namespace pare
