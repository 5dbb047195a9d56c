#include "pare/report/html.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace pare {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

// How many bytes of well-formed UTF-8 begin here; 0 where none do.
size_t character_length(std::string_view text) {
  const auto byte = [&text](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto follows = [&byte](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80U) {
    return 1;
  }
  if (first >= 0xC2U && first <= 0xDFU) {
    return follows(1) ? 2 : 0;
  }
  if (first >= 0xE0U && first <= 0xEFU) {
    const bool too_long = first == 0xE0U && second < 0xA0U, surrogate = first == 0xEDU && second > 0x9FU;
    return follows(1) && follows(2) && !too_long && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0U && first <= 0xF4U) {
    const bool too_long = first == 0xF0U && second < 0x90U, too_large = first == 0xF4U && second > 0x8FU;
    return follows(1) && follows(2) && follows(3) && !too_long && !too_large ? 4 : 0;
  }
  return 0;
}

// C1 controls, and what turns the direction of text: U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069.
bool is_invisible(std::string_view character) {
  if (character.size() == 2) {
    return character[0] == '\xC2' && static_cast<unsigned char>(character[1]) < 0xA0U;
  }
  if (character.size() != 3 || character[0] != '\xE2') {
    return false;
  }
  const unsigned last = static_cast<unsigned char>(character[2]);
  return (character[1] == '\x80' && (last == 0x8EU || last == 0x8FU || (last >= 0xAAU && last <= 0xAEU))) ||
         (character[1] == '\x81' && last >= 0xA6U && last <= 0xA9U);
}

std::string_view safe_ascii(const char& c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    case '\n':
    case '\t':
      return {&c, 1};
    default:
      return static_cast<unsigned char>(c) < 0x20U || c == 0x7F ? replacement : std::string_view(&c, 1);
  }
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  while (!text.empty()) {
    const size_t length = character_length(text);
    if (length == 0) {
      safe += replacement;
      text.remove_prefix(1);
      continue;
    }
    const std::string_view character = text.substr(0, length);
    safe += length == 1 ? safe_ascii(text.front()) : is_invisible(character) ? replacement : character;
    text.remove_prefix(length);
  }
  return safe;
}

std::string script_json(const nlohmann::ordered_json& json) {
  // Outside of strings JSON has none of these characters, and inside of them any may be written by its number.
  std::string safe;
  for (const char c : json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&') {
      safe += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) {
    return "–";
  }
  const bool whole = value == std::trunc(value) && std::abs(value) < 1e15;
  return whole ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

}  // namespace pare
