#include "pare/data/utf8.h"

#include <algorithm>
#include <cstring>

namespace pare {

namespace {

enum class Start { whole, cut, wrong };

struct Prefix {
  Start kind;
  size_t bytes;  // of the character, or of the longest beginning of one
};

// What begins at the front of `text`, which is not empty: the table of well-formed byte sequences of Unicode.
Prefix first_character(std::string_view text) {
  const auto byte = [&](size_t n) { return static_cast<unsigned char>(text[n]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    return {Start::whole, 1};
  }
  if (first < 0xC2 || first > 0xF4) {
    return {Start::wrong, 1};
  }
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t n = 1; n < length; ++n) {
    if (n == text.size()) {
      return {Start::cut, n};
    }
    if (byte(n) < (n == 1 ? low : 0x80) || byte(n) > (n == 1 ? high : 0xBF)) {
      return {Start::wrong, n};
    }
  }
  return {Start::whole, length};
}

// How many bytes from `at` on are ASCII, eight at a time.
size_t ascii_run(std::string_view text, size_t at) {
  const size_t begin = at;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080) {
      break;
    }
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) {
    ++at;
  }
  return at - begin;
}

}  // namespace

void append_utf8(std::string& text, char32_t point) {
  const auto add = [&text](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    add(point);
  } else if (point < 0x800) {
    add(0xC0 | point >> 6);
    add(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    add(0xE0 | point >> 12);
    add(0x80 | (point >> 6 & 0x3F));
    add(0x80 | (point & 0x3F));
  } else {
    add(0xF0 | point >> 18);
    add(0x80 | (point >> 12 & 0x3F));
    add(0x80 | (point >> 6 & 0x3F));
    add(0x80 | (point & 0x3F));
  }
}

std::string utf8_of(char32_t point) {
  std::string text;
  append_utf8(text, point);
  return text;
}

std::u32string characters_of(std::string_view text) {
  std::u32string points;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    points.push_back(c.point);
    at += c.bytes;
  }
  return points;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool is_ascii(std::string_view text) {
  return ascii_run(text, 0) == text.size();
}

std::optional<size_t> invalid_utf8(std::string_view text, bool may_go_on) {
  for (size_t at = ascii_run(text, 0); at < text.size(); at += ascii_run(text, at)) {
    const Prefix found = first_character(text.substr(at));
    if (found.kind == Start::cut && may_go_on) {
      return std::nullopt;
    }
    if (found.kind != Start::whole) {
      return at;
    }
    at += found.bytes;
  }
  return std::nullopt;
}

size_t unfinished_utf8(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const std::string_view end = text.substr(text.size() - back);
    if ((static_cast<unsigned char>(end[0]) & 0xC0) != 0x80) {
      return first_character(end).kind == Start::cut ? back : 0;
    }
  }
  return 0;
}

std::string repaired_utf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Prefix found = first_character(bytes);
    text += found.kind == Start::whole ? bytes.substr(0, found.bytes) : "\xEF\xBF\xBD";
    bytes.remove_prefix(found.bytes);
  }
  return text;
}

}  // namespace pare
