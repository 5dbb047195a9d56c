#include "pare/support/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace pare {

namespace {

// Insertions, deletions, substitutions and swaps of neighbours, each of cost one.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    above[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

bool continues_utf8(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

size_t utf8_length(std::string_view text) {
  unsigned char lead = static_cast<unsigned char>(text.front());
  size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : 4;
  if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || text.size() < length) {
    return 0;
  }
  // Longer than it has to be, half of a pair of UTF-16, above U+10FFFF: RFC 3629 forbids all three.
  const unsigned char second = length > 1 ? static_cast<unsigned char>(text[1]) : 0x80;
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return std::all_of(text.begin() + 1, text.begin() + length, continues_utf8) ? length : 0;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates, std::string_view text) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format(fmt::runtime(text), near);
}

std::string escaped(std::string_view text) {
  constexpr size_t longest = 400;
  std::string result;
  while (!text.empty()) {
    if (result.size() >= longest) {
      return result + "...";
    }
    size_t length = utf8_length(text);
    unsigned char lead = static_cast<unsigned char>(text.front());
    // Some terminals obey the control characters from U+0080 on too.
    bool control =
        lead < 0x20 || lead == 0x7F || (lead == 0xC2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xA0);
    if (length == 0 || control) {
      result += fmt::format("\\x{:02x}", lead);
      text.remove_prefix(1);
    } else {
      result.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return result;
}

std::string quote(std::string_view text) {
  return "'" + escaped(text) + "'";
}

namespace {

// Matches one [set] at the front of the pattern against c. Returns the pattern after it, or an empty view with no data
// when there is no closing bracket: then '[' stands for itself.
struct SetMatch {
  bool closed = false, matches = false;
  std::string_view rest;
};

SetMatch match_set(std::string_view pattern, char c) {
  size_t i = 1;
  bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) {
    ++i;
  }
  bool found = false;
  for (size_t start = i; i < pattern.size() && (pattern[i] != ']' || i == start); ++i) {
    char low = pattern[i], high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      high = pattern[i + 2];
      i += 2;
    }
    found = found || (low <= c && c <= high);
  }
  if (i >= pattern.size()) {
    return {};
  }
  return {true, found != negated, pattern.substr(i + 1)};
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view name) {
  // Only the last * ever needs to be retried, so this is quadratic at worst.
  std::string_view after_star, retry;
  bool starred = false;
  while (true) {
    bool stuck = false;
    if (!pattern.empty() && pattern.front() == '*') {
      starred = true;
      after_star = pattern.substr(1);
      retry = name;
      pattern = after_star;
      continue;
    }
    if (name.empty()) {
      return pattern.empty();
    }
    if (pattern.empty()) {
      stuck = true;
    } else if (SetMatch set; pattern.front() == '[' && (set = match_set(pattern, name.front())).closed) {
      stuck = !set.matches;
      pattern = set.rest;
    } else if (pattern.front() == '?') {
      pattern.remove_prefix(1);
    } else {
      if (pattern.front() == '\\' && pattern.size() > 1) {
        pattern.remove_prefix(1);
      }
      stuck = pattern.front() != name.front();
      pattern.remove_prefix(1);
    }
    name.remove_prefix(1);
    if (stuck) {
      if (!starred || retry.empty()) {
        return false;
      }
      retry.remove_prefix(1);
      name = retry;
      pattern = after_star;
    }
  }
}

std::string shell_word(std::string_view text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("._-/+=").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, plain)) {
    return std::string(text);
  }
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + "'";
}

}  // namespace pare
