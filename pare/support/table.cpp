#include "pare/support/table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "pare/support/names.h"

namespace pare {

size_t display_width(std::string_view text) {
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  return text.size() - static_cast<size_t>(std::ranges::count_if(text, continues));
}

static std::optional<size_t> width_at(int file) {
  constexpr size_t least = 40, most = 10'000;
  const char* columns = std::getenv("COLUMNS");
  size_t width = columns == nullptr ? 0 : std::strtoul(columns, nullptr, 10);
  winsize window = {};
  if (width == 0 && isatty(file) == 1 && ioctl(file, TIOCGWINSZ, &window) == 0) {
    width = window.ws_col;
  }
  return width == 0 ? std::nullopt : std::optional(std::clamp(width, least, most));
}

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

Table::Table(std::vector<Align> columns, std::vector<std::string> head) : Table(std::move(columns)) {
  row(std::move(head));
  rule();
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
