#include "pare/data/normalizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// The text without the characters for which `drop` holds.
template <typename Drop>
std::string filtered(std::string_view text, const Drop& drop) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    if (!drop(c.point)) {
      result.append(text, at, c.bytes);
    }
    at += c.bytes;
  }
  return result;
}

std::string lower_of(std::string_view text) {
  const UnicodeTable& table = UnicodeTable::get();
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    if (c.point < 0x80) {
      result.push_back(static_cast<char>(c.point >= 'A' && c.point <= 'Z' ? c.point + 32 : c.point));
    } else {
      table.append_lower(c.point, result);
    }
    at += c.bytes;
  }
  return result;
}

std::string trimmed(std::string_view text, const TrimText& step, TextPart part) {
  const UnicodeTable& table = UnicodeTable::get();
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    if (!table.is(c.point, CharacterFlag::white)) {
      begin = std::min(begin, at);
      end = at + c.bytes;
    }
    at += c.bytes;
  }
  if (begin == text.size()) {
    return step.left || step.right ? "" : std::string(text);
  }
  const size_t first = step.left && part == TextPart::begins ? begin : 0;
  return std::string(text.substr(first, (step.right ? end : text.size()) - first));
}

// A character becomes eighteen at most by a normal form, and a few by a replacement that somebody needs. Steps that
// double a text, one after the other, would fill any memory.
constexpr size_t largest_growth = 64, small_text = 1 << 20, largest_result = size_t{1} << 30;

struct TooLarge {
  size_t limit;
};

size_t limit_of(size_t bytes) {
  return std::max(bytes, std::min(small_text + largest_growth * bytes, largest_result));
}

void check_size(size_t bytes, size_t limit) {
  if (bytes > limit) {
    throw TooLarge{limit};
  }
}

std::string replaced(std::string_view text, const std::string& from, const std::string& to, size_t limit) {
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  size_t at = 0;
  for (size_t found = text.find(from); found != std::string_view::npos; found = text.find(from, at)) {
    result.append(text, at, found - at).append(to);
    check_size(result.size(), limit);
    at = found + from.size();
  }
  return result.append(text, at);
}

// ASCII alone, which most text is, needs no table.
std::string bert_ascii(std::string_view text, const BertText& step) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const bool white = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (step.clean && !white && (c < 0x20 || c == 0x7F)) {
      continue;
    }
    const bool upper = step.lowercase && c >= 'A' && c <= 'Z';
    result.push_back(step.clean && white ? ' ' : upper ? static_cast<char>(c + 32) : c);
  }
  return result;
}

std::string bert_text(std::string_view given, const BertText& step) {
  if (is_ascii(given)) {
    return bert_ascii(given, step);
  }
  const UnicodeTable& table = UnicodeTable::get();
  std::string text;
  text.reserve(given.size() + given.size() / 4);
  for (size_t at = 0; at < given.size();) {
    const Utf8Character c = character_at(given, at);
    const bool chinese = step.chinese && table.is(c.point, CharacterFlag::bert_chinese);
    if (step.clean && table.is(c.point, CharacterFlag::white) && !table.is(c.point, CharacterFlag::bert_removed)) {
      text.push_back(' ');
    } else if (!step.clean || !table.is(c.point, CharacterFlag::bert_removed)) {
      text.append(chinese ? " " : "").append(given, at, c.bytes).append(chinese ? " " : "");
    }
    at += c.bytes;
  }
  if (step.accents) {
    text =
        filtered(normalized(text, NormalForm::nfd), [&](char32_t c) { return table.is(c, CharacterFlag::bert_mark); });
  }
  return step.lowercase ? lower_of(text) : text;
}

struct Apply {
  std::string_view text;
  TextPart part;
  size_t limit;

  std::string operator()(NormalForm form) const { return normalized(text, form); }
  std::string operator()(const LowercaseText&) const { return lower_of(text); }
  std::string operator()(const WithoutAccents&) const {
    const UnicodeTable& table = UnicodeTable::get();
    return filtered(text, [&](char32_t c) { return table.is(c, CharacterFlag::mark); });
  }
  std::string operator()(const TrimText& step) const { return trimmed(text, step, part); }
  std::string operator()(const PrependText& step) const {
    return text.empty() || part == TextPart::continues ? std::string(text) : step.text + std::string(text);
  }
  std::string operator()(const ReplaceString& step) const { return replaced(text, step.from, step.to, limit); }
  std::string operator()(ReplaceMatches& step) const {
    std::vector<ByteSpan> matches;
    step.pattern.find_all(text, matches);
    std::string result;
    size_t at = 0;
    for (const ByteSpan& match : matches) {
      result.append(text, at, match.begin - at).append(step.to);
      check_size(result.size(), limit);
      at = match.end;
    }
    return result.append(text, at);
  }
  std::string operator()(const BertText& step) const { return bert_text(text, step); }
};

}  // namespace

std::string Normalizer::apply(std::string_view text, TextPart part) {
  std::string result(text);
  try {
    for (NormalStep& step : steps_) {
      result = std::visit(Apply{result, part, limit_of(text.size())}, step);
      check_size(result.size(), limit_of(text.size()));
    }
  } catch (const TooLarge& found) {
    throw InputError(fmt::format(
        "{}: its normalizer makes more than {} of {} of text: no tokenizer needs that; remove its Replace or Prepend",
        subject_.empty() ? "the tokenizer" : subject_, human_bytes(found.limit), human_bytes(text.size())));
  }
  return result;
}

bool Normalizer::works_in_parts() const {
  return std::ranges::all_of(steps_, [](const NormalStep& step) {
    if (const auto* replace = std::get_if<ReplaceString>(&step)) {
      return count_characters(replace->from) == 1;
    }
    return !std::holds_alternative<TrimText>(step) && !std::holds_alternative<ReplaceMatches>(step);
  });
}

}  // namespace pare
