#pragma once
// WordPiece: from the front of a word, the longest token each time.

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "pare/data/vocabulary.h"

namespace pare {

struct WordPieceOptions {
  std::string unknown = "[UNK]";
  std::string continuing_prefix = "##";
  size_t longest_word = 100;  // characters; longer ones are unknown
  bool whole_words = false;   // WordLevel: a word is one token, or unknown
};

class WordPieceModel {
 public:
  // InputError where the unknown token is not in the vocabulary.
  WordPieceModel(const Vocabulary& vocabulary, WordPieceOptions options, const std::string& subject);
  void append_tokens(std::string_view word, std::vector<TokenId>& ids);

 private:
  using Pieces = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;
  bool take_pieces(std::string_view word, std::vector<TokenId>& ids) const;
  WordPieceOptions options_;
  Pieces first_, later_;  // those that continue a word, without their prefix
  size_t longest_piece_ = 0;
  TokenId unknown_ = -1;
  WordCache cache_;
};

}  // namespace pare
