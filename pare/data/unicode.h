#pragma once
// What characters are, as the tokenizers package has it: unicode.txt beside this file, which tools/unicode_table.py
// writes and the build embeds. Its parts are of different versions of Unicode, since those of the package are.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pare {

// The embedded table, line by line.
std::span<const std::string_view> unicode_lines();

constexpr char32_t highest_character = 0x10FFFF;

enum class CharacterFlag : uint16_t {
  white = 1,    // \s, and what Rust calls whitespace
  word = 2,     // \w
  han = 4,      // the script
  numeric = 8,  // for Digits
  mark = 16,    // for StripAccents
  bert_punctuation = 32,
  bert_removed = 64,  // by clean_text
  bert_mark = 128,    // by BERT's strip_accents
  bert_chinese = 256,
  has_lower = 512,
  rust_word = 1024,  // for Whitespace and added tokens: not quite \w
};

class UnicodeTable {
 public:
  static const UnicodeTable& get();  // made when it is first asked for

  bool is(char32_t point, CharacterFlag flag) const { return flags_[point] & static_cast<uint16_t>(flag); }
  // Categories as bits, so that \p{L} is a union. 0 for what is not assigned.
  uint32_t category_bit(char32_t point) const { return 1U << categories_[point] & ~1U; }
  // The same number for characters that no pattern without ranges tells apart; below 256.
  size_t kind(char32_t point) const { return static_cast<size_t>(categories_[point] << 3 | (flags_[point] & 7)); }
  // The union that a name as in \p{NAME} stands for, long or short; 0 for an unknown one.
  static uint32_t categories_named(std::string_view name);

  // Appends the lower case of one character: one character, seldom several.
  void append_lower(char32_t point, std::string& text) const;
  uint8_t combining_class(char32_t point) const;
  // The whole decomposition, canonical or compatible. Without one, the character itself.
  void append_decomposed(char32_t point, bool compatible, std::u32string& text) const;
  // The character that two compose to; 0 where they do not.
  char32_t composed(char32_t first, char32_t second) const;

 private:
  UnicodeTable();
  void read_line(std::string_view line);
  std::vector<uint8_t> categories_;  // number of the category, 0: none
  std::vector<uint16_t> flags_;
  std::unordered_map<char32_t, std::u32string> lower_, canonical_, compatible_;  // one step each
  std::unordered_map<uint64_t, char32_t> composed_;
  std::unordered_map<char32_t, uint8_t> classes_;
};

bool is_letter(char32_t point);  // of any alphabet

enum class NormalForm { nfd, nfc, nfkd, nfkc };

// Normal forms of Unicode: decomposed, marks in order, and composed again where the form says so.
std::string normalized(std::string_view text, NormalForm form);

}  // namespace pare
