#pragma once
// Tokens that are found in a text before anything else is done to it, such as <|endoftext|>.

#include <string>
#include <string_view>
#include <vector>

#include "pare/data/vocabulary.h"

namespace pare {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;                          // left out when text is made of ids again
  bool single_word = false;                      // only where no word goes on before or after it
  bool left_strip = false, right_strip = false;  // takes white space beside it along
  bool normalized = false;                       // looked for after the normalizer
};

struct TextSection {
  size_t begin = 0, end = 0;
  TokenId id = -1;  // of the token that this is; -1: text
};

class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  // The text in sections, front to back: of tokens that begin at one place, the longest.
  std::vector<TextSection> split(std::string_view text) const;

 private:
  const AddedToken* token_at(std::string_view text, size_t at) const;
  std::vector<AddedToken> tokens_;                  // longest first
  std::vector<std::vector<size_t>> by_first_byte_;  // of 256
};

}  // namespace pare
