#pragma once
// Lines and tables that fit the terminal.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

size_t display_width(std::string_view text);  // in characters
// How wide a line may be. $COLUMNS, else the terminal's own width, never under 40; nothing where neither is known.
std::optional<size_t> known_width();
size_t text_width();  // or 80

// Words in lines of that width: `first` begins the first line, the others are indented by `indent`.
std::string wrapped(std::string_view text, size_t indent, std::string_view first);
std::string wrapped(std::string_view text, size_t indent);
// Text in lines, for a width that is known: those that are too long are broken, and go on where their last column
// began.
std::string fitted(std::string_view lines);
// The same for stderr, where a line goes on two columns behind its beginning. Elsewhere than on a terminal lines stay
// whole, for whoever searches a log for them.
std::string fitted_message(std::string_view lines);

// Columns with two spaces between them; a row may end early. Too wide for a width that is known, the first column is
// broken into lines, and where even that is too wide, each row into lines of their own.
enum class Align { left, right };

class Table {
 public:
  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}
  Table(std::vector<Align> columns, std::vector<std::string> head);  // with a rule below it
  void row(std::vector<std::string> cells);
  void rule();  // a line of dashes across the table
  std::string text() const;

 private:
  std::string in_columns(const std::vector<std::vector<std::string>>& rows) const;
  std::string in_records() const;
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace pare
