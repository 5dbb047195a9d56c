#include <algorithm>

#include "pare/data/unicode.h"
#include "pare/data/utf8.h"

namespace pare {

namespace {

// Marks after one another stand by class, those of one class as they came.
void order_marks(std::u32string& text, const UnicodeTable& table) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && table.combining_class(text[end]) != 0) {
      ++end;
    }
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(begin), text.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](char32_t a, char32_t b) { return table.combining_class(a) < table.combining_class(b); });
    begin = end + 1;
  }
}

// Each character joins the last starter before it, where nothing of its class or a higher one stands between.
std::u32string compose(const std::u32string& text, const UnicodeTable& table) {
  std::u32string result;
  size_t starter = std::u32string::npos;
  int last_class = -1;  // of what stands between; -1: nothing does
  for (const char32_t c : text) {
    const int own_class = table.combining_class(c);
    if (starter != std::u32string::npos && last_class < own_class) {
      const char32_t joined = table.composed(result[starter], c);
      if (joined != 0) {
        result[starter] = joined;
        continue;
      }
    }
    if (own_class == 0) {
      starter = result.size();
      last_class = -1;
    } else {
      last_class = own_class;
    }
    result.push_back(c);
  }
  return result;
}

void append_normalized(std::string_view part, NormalForm form, const UnicodeTable& table, std::string& result) {
  std::u32string points;
  const bool compatible = form == NormalForm::nfkd || form == NormalForm::nfkc;
  for (size_t at = 0; at < part.size();) {
    const Utf8Character c = character_at(part, at);
    table.append_decomposed(c.point, compatible, points);
    at += c.bytes;
  }
  order_marks(points, table);
  if (form == NormalForm::nfc || form == NormalForm::nfkc) {
    points = compose(points, table);
  }
  for (const char32_t c : points) {
    append_utf8(result, c);
  }
}

}  // namespace

// An ASCII character changes only with what comes after it, so the text falls into parts before each of them.
std::string normalized(std::string_view text, NormalForm form) {
  if (is_ascii(text)) {
    return std::string(text);
  }
  const UnicodeTable& table = UnicodeTable::get();
  const auto ascii = [&text](size_t at) { return static_cast<unsigned char>(text[at]) < 0x80; };
  std::string result;
  result.reserve(text.size() + text.size() / 8);
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    if (ascii(at) && (end == text.size() || ascii(end))) {
      result.push_back(text[at]);
    } else {
      while (end < text.size() && !ascii(end)) {
        ++end;
      }
      append_normalized(text.substr(at, end - at), form, table, result);
    }
    at = end;
  }
  return result;
}

}  // namespace pare
