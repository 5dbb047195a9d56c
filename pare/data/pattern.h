#pragma once
// The patterns that tokenizers split text by: regular expressions in Oniguruma's syntax, as far as tokenizers use it.
//
// Text is matched as one byte a character. ASCII stands for itself; all others fall into the classes that the pattern
// can tell apart ("a letter", "white space", "neither"), one byte each. So the classes are those of our own Unicode
// table, whatever version PCRE2 has, and matching is as fast as on ASCII.

#include <string>
#include <string_view>
#include <vector>

#include "pare/data/matcher.h"

namespace pare {

class Pattern {
 public:
  // InputError for what we do not translate, which names it. `subject` is the file.
  Pattern(std::string_view expression, const std::string& subject);

  // Every match in valid UTF-8, front to back.
  void find_all(std::string_view text, std::vector<ByteSpan>& matches);

 private:
  std::vector<unsigned char> symbols_;  // of each character from 128 on
  ByteMatcher matcher_;
  std::string subject_;  // what is matched now, as symbols
};

// Parts of a translation: text for PCRE2, and sets of characters whose bytes are not known yet.
struct CharacterSet {
  struct Item {
    size_t atom;
    bool negated = false;
  };
  std::vector<Item> items;
  bool negated = false;
};

// Something a pattern asks of a character: one of these categories, flags, or ranges.
struct CharacterAtom {
  uint32_t categories = 0;
  uint16_t flags = 0;
  std::vector<std::pair<char32_t, char32_t>> ranges = {};
  bool operator==(const CharacterAtom&) const = default;
  bool holds(char32_t point) const;
};

struct ParsedPattern {
  struct Part {
    std::string text;  // as it is, where there is one
    CharacterSet set;
  };
  std::vector<CharacterAtom> atoms;
  std::vector<Part> parts;
};

// InputError for what is not supported.
ParsedPattern parse_pattern(std::string_view expression, const std::string& subject);

}  // namespace pare
