#pragma once
// Tokens made into text as they come. The pieces together are what Tokenizer::decode makes of all tokens at once, and
// no piece ends within a character.

#include <span>
#include <string>
#include <vector>

#include "pare/data/tokenizer.h"

namespace pare {

class TextStream {
 public:
  // Begins behind `prompt`, whose own text is not handed out. The tokenizer outlives the stream.
  TextStream(const Tokenizer& tokenizer, std::span<const TokenId> prompt);

  // What is certain by now, whatever follows. An id that is no token adds nothing.
  std::string add(TokenId id);
  // What comes after that if the text ends here.
  std::string rest() const;

 private:
  std::string without_prompt(std::string text, std::string& pending) const;

  const Tokenizer* tokenizer_;
  std::vector<TokenId> window_;  // the last token of which all is certain, and what came after it
  size_t given_ = 0;             // bytes of the window's text that were handed out, or are the prompt's
  // The end of the prompt's text that its tokens leave open, as the bytes of a character do. It is shown already.
  std::string pending_;
};

}  // namespace pare
