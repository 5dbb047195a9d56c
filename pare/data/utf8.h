#pragma once
// Text as characters. Texts are checked where they come in; everything after that may rely on it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pare {

struct Utf8Character {
  char32_t point;
  uint32_t bytes;
};

// The character that begins at byte `at` of valid text.
inline Utf8Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t n) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + n])); };
  const char32_t first = byte(0);
  if (first < 0x80) {
    return {first, 1};
  }
  if (first < 0xE0) {
    return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  }
  if (first < 0xF0) {
    return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  }
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// The one that ends before byte `at`, which is not 0.
inline char32_t character_before(std::string_view text, size_t at) {
  do {
    --at;
  } while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return character_at(text, at).point;
}

void append_utf8(std::string& text, char32_t point);
std::string utf8_of(char32_t point);

std::u32string characters_of(std::string_view text);
size_t count_characters(std::string_view text);
bool is_ascii(std::string_view text);

// Where the first byte stands that begins no whole character. Surrogates and overlong forms are none. A character that
// the end of the text cuts is one at its beginning, and nothing where `may_go_on`.
std::optional<size_t> invalid_utf8(std::string_view text, bool may_go_on = false);
// How many bytes at the end of valid text are the beginning of a character.
size_t unfinished_utf8(std::string_view text);
// Bytes that make no characters become U+FFFD, one for each longest beginning of one.
std::string repaired_utf8(std::string_view bytes);

}  // namespace pare
