#pragma once
// Tokens made into text again: the decoder of a tokenizer.json.

#include <string>
#include <variant>
#include <vector>

namespace pare {

struct DecodeVisibleBytes {};  // GPT-2's alphabet
struct DecodeWordPieces {
  std::string prefix = "##";
  bool cleanup = true;  // no space before punctuation and contractions
};
struct DecodeSpaces {  // Metaspace
  std::string replacement;
  bool drop_first = true;  // those of the first token, all of them
};
struct DecodeSuffix {  // end of a word
  std::string suffix;
};
struct DecodeReplace {
  std::string from, to;
};
struct DecodeByteTokens {};  // <0x0A>
struct DecodeFuse {};        // from here on one text
struct DecodeStrip {
  std::string character;
  size_t start = 0, stop = 0;  // so many of them at either end, at most
};

using DecodeStep = std::variant<DecodeVisibleBytes, DecodeWordPieces, DecodeSpaces, DecodeSuffix, DecodeReplace,
                                DecodeByteTokens, DecodeFuse, DecodeStrip>;

// Whether tokens may still follow. `open`: only what none of them can change, and so always the beginning of the text
// of any tokens that begin so.
enum class TextEnd { closed, open };

// The tokens put together. Without steps they are words, with spaces between.
std::string decoded(std::vector<std::string> tokens, const std::vector<DecodeStep>& steps,
                    TextEnd end = TextEnd::closed);

}  // namespace pare
