#include "pare/support/text.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

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

// The length of the well-formed UTF-8 character at the front, 0 when it is broken.
size_t utf8_length(std::string_view text) {
  unsigned char lead = static_cast<unsigned char>(text.front());
  size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : 4;
  if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || text.size() < length) {
    return 0;
  }
  return std::all_of(text.begin() + 1, text.begin() + length, continues_utf8) ? length : 0;
}

// Three significant digits without a loose ".0": 999, 1.5K, 124M.
std::string scaled(double number, std::string_view suffix) {
  std::string digits = fmt::format("{:.{}f}", number, number < 99.95 ? 1 : 0);
  if (digits.ends_with(".0")) {
    digits.resize(digits.size() - 2);
  }
  return digits + std::string(suffix);
}

}  // namespace

size_t display_width(std::string_view text) {
  return text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), continues_utf8));
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

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  size_t first = number < 0 ? 1 : 0;
  for (size_t place = digits.size(); place > first + 3;) {
    place -= 3;
    digits.insert(place, ",");
  }
  return digits;
}

std::string human_count(int64_t number) {
  double n = static_cast<double>(number);
  double size = std::abs(n);
  if (size < 1000) {
    return std::to_string(number);
  }
  // 999,950 and more would print as 1000K.
  if (size < 999.5e3) {
    return scaled(n / 1e3, "K");
  }
  if (size < 999.5e6) {
    return scaled(n / 1e6, "M");
  }
  return size < 999.5e9 ? scaled(n / 1e9, "B") : scaled(n / 1e12, "T");
}

std::string human_bytes(uint64_t bytes) {
  double n = static_cast<double>(bytes);
  if (n < 1000) {
    return std::to_string(bytes) + " B";
  }
  if (n < 999.5e3) {
    return scaled(n / 1e3, " KB");
  }
  if (n < 999.5e6) {
    return scaled(n / 1e6, " MB");
  }
  return n < 999.5e9 ? scaled(n / 1e9, " GB") : scaled(n / 1e12, " TB");
}

std::string human_time(double seconds) {
  if (!(seconds < 3.6e8)) {
    return "a very long time";
  }
  int64_t whole = std::llround(seconds);
  if (whole < 60) {
    return fmt::format("{} s", whole);
  }
  if (whole < 3600) {
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
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

namespace {

std::optional<size_t> width_at(int file) {
  constexpr size_t least = 40, most = 10'000;
  const char* columns = std::getenv("COLUMNS");
  size_t width = columns == nullptr ? 0 : std::strtoul(columns, nullptr, 10);
  winsize window = {};
  if (width == 0 && isatty(file) == 1 && ioctl(file, TIOCGWINSZ, &window) == 0) {
    width = window.ws_col;
  }
  return width == 0 ? std::nullopt : std::optional(std::clamp(width, least, most));
}

}  // namespace

std::optional<size_t> known_width() {
  return width_at(STDOUT_FILENO);
}

size_t text_width() {
  return known_width().value_or(80);
}

namespace {

// A cell too long for its column, or a word for its line, in pieces: after a space or a joint of a name where there is
// one in the second half, else anywhere.
std::vector<std::string> broken(std::string_view text, size_t width) {
  std::vector<std::string> pieces;
  while (display_width(text) > width) {
    size_t end = 0;
    for (size_t columns = 0; columns < width; ++columns) {
      end += std::max<size_t>(1, utf8_length(text.substr(end)));
    }
    const size_t joint = text.find_last_of(" ,{/._-", end - 1);
    if (joint != std::string_view::npos && joint + 1 > end / 2) {
      end = joint + 1;
    }
    const std::string_view piece = text.substr(0, end);
    pieces.emplace_back(piece.substr(0, piece.find_last_not_of(' ') + 1));
    text.remove_prefix(end);
  }
  pieces.emplace_back(text);
  return pieces;
}

std::string wrapped_to(size_t width, std::string_view text, size_t indent, std::string_view first) {
  std::string lines, line(first);
  bool begun = false;  // a word is on the line
  const auto end_line = [&] {
    lines += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    line.assign(indent, ' ');
    begun = false;
  };
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
    if (text.empty()) {
      return lines + line + "\n";
    }
    const std::string_view word = text.substr(0, text.find_first_of(" \n"));
    if ((begun || display_width(line) > indent) && display_width(line) + begun + display_width(word) > width) {
      end_line();
    }
    const std::vector<std::string> pieces = broken(word, std::max<size_t>(width - std::min(width, indent), 8));
    for (size_t i = 0; i < pieces.size(); ++i) {
      line += (begun ? " " : "") + pieces[i];
      begun = true;
      if (i + 1 < pieces.size()) {
        end_line();
      }
    }
    text.remove_prefix(word.size());
  }
}

}  // namespace

std::string wrapped(std::string_view text, size_t indent, std::string_view first) {
  return wrapped_to(text_width(), text, indent, first);
}

std::string wrapped(std::string_view text, size_t indent) {
  return wrapped(text, indent, std::string(indent, ' '));
}

std::string fitted_message(std::string_view lines) {
  const std::optional<size_t> width = width_at(STDERR_FILENO);
  std::string result;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    result += width && display_width(line) > *width
                  ? wrapped_to(*width, line.substr(begin), begin + 2, line.substr(0, begin))
                  : std::string(line) + "\n";
  }
  return result;
}

std::string fitted(std::string_view lines) {
  const size_t width = known_width().value_or(std::string_view::npos);
  std::string result;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    if (display_width(line) <= width) {
      result.append(line).append("\n");
      continue;
    }
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    const size_t gap = line.find("  ", begin);
    const size_t last = gap == std::string_view::npos ? begin : line.find_first_not_of(' ', gap);
    const size_t indent = std::min(last, width / 2);
    result += wrapped(line.substr(last), indent, line.substr(0, last));
  }
  return result;
}

void Table::row(std::vector<std::string> cells) {
  rows_.push_back(std::move(cells));
}

void Table::rule() {
  rows_.emplace_back();
}

namespace {

std::vector<size_t> column_widths(const std::vector<std::vector<std::string>>& rows, size_t columns) {
  std::vector<size_t> widths(columns, 0);
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths.at(i) = std::max(widths[i], display_width(row[i]));
    }
  }
  return widths;
}

size_t total_width(const std::vector<size_t>& widths) {
  size_t total = 2 * (widths.size() - 1);
  for (size_t width : widths) {
    total += width;
  }
  return total;
}

}  // namespace

std::string Table::text() const {
  const std::optional<size_t> most = known_width();
  const std::vector<size_t> widths = column_widths(rows_, columns_.size());
  const size_t total = total_width(widths);
  if (!most || total <= *most) {
    return in_columns(rows_);
  }
  constexpr size_t narrowest = 12;
  const size_t others = total - widths[0];
  if (others + narrowest > *most) {
    return in_records();
  }
  std::vector<std::vector<std::string>> rows;
  for (const std::vector<std::string>& row : rows_) {
    if (row.empty()) {
      rows.push_back(row);
      continue;
    }
    std::vector<std::string> lines = broken(row[0], *most - others);
    rows.push_back(row);
    rows.back()[0] = lines.front();
    for (size_t i = 1; i < lines.size(); ++i) {
      rows.push_back({lines[i]});
    }
  }
  return in_columns(rows);
}

// A row is a line with its first cell, and one for each other cell, under the head of its column where there is one.
std::string Table::in_records() const {
  const bool headed = rows_.size() > 1 && rows_[1].empty();
  std::string text = headed ? wrapped(rows_[0][0], 0) + "\n" : "";
  for (size_t n = headed ? 2 : 0; n < rows_.size(); ++n) {
    for (size_t i = 0; i < rows_[n].size(); ++i) {
      const std::string head = headed && i > 0 && i < rows_[0].size() ? rows_[0][i] + ": " : "";
      if (i == 0 || !rows_[n][i].empty()) {
        text += wrapped(head + rows_[n][i], i == 0 ? 0 : 2);
      }
    }
  }
  return text;
}

std::string Table::in_columns(const std::vector<std::vector<std::string>>& rows) const {
  const std::vector<size_t> widths = column_widths(rows, columns_.size());
  const size_t total = total_width(widths);
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line = row.empty() ? std::string(total, '-') : "";
    for (size_t i = 0; i < row.size(); ++i) {
      std::string padding(widths[i] - display_width(row[i]), ' ');
      line += i > 0 ? "  " : "";
      line += columns_[i] == Align::right ? padding + row[i] : row[i] + padding;
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace pare
