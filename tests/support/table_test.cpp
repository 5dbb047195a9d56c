#include "pare/support/table.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/support/helpers.h"

using namespace pare;

TEST_CASE("a table aligns its columns by characters, and ends lines where the text ends") {
  Table table({Align::left, Align::right, Align::left});
  table.row({"part", "count", "note"});
  table.rule();
  table.row({"größe", "1,024", ""});
  table.row({"q", "7"});
  CHECK(table.text() ==
        "part   count  note\n"
        "------------------\n"
        "größe  1,024\n"
        "q          7\n");
}

namespace {

// While it lives, the environment says that lines have so many columns; nullptr: nothing.
class Columns {
 public:
  explicit Columns(const char* value) { value == nullptr ? unsetenv("COLUMNS") : setenv("COLUMNS", value, 1); }
  ~Columns() { unsetenv("COLUMNS"); }
  Columns(const Columns&) = delete;
  Columns& operator=(const Columns&) = delete;
};

size_t widest(const std::string& text) {
  size_t most = 0, begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
    most = std::max(most, end - begin);
  }
  return most;
}

}  // namespace

TEST_CASE("the width of a line is what COLUMNS says, within reason") {
  for (const auto& [columns, width] : std::vector<std::pair<const char*, size_t>>{
           {"100", 100}, {"40", 40}, {"7", 40}, {"", 80}, {"0", 80}, {"wide", 80}, {"99999999999999999999", 10000}}) {
    const Columns set(columns);
    CAPTURE(columns);
    CHECK(text_width() == width);
  }
  const Columns unset(nullptr);
  CHECK(text_width() == 80);  // tests write to a pipe or a file
  CHECK_FALSE(known_width());
}

TEST_CASE("messages fit the width, and go on two columns behind their beginning; in a log they stay whole") {
  const std::string message = "pare: refused: one two three four five six\n  blocks.0: seven eight nine ten eleven\n";
  {
    const Columns set("40");
    CHECK(fitted_message(message) ==
          "pare: refused: one two three four five\n  six\n  blocks.0: seven eight nine ten eleven\n");
    CHECK(fitted_message("    one two three four five six seven eight\nshort\n") ==
          "    one two three four five six seven\n      eight\nshort\n");
  }
  const Columns unset(nullptr);
  CHECK(fitted_message(message) == message);
  CHECK(fitted_message("") == "");
}

TEST_CASE("words are wrapped to the width, and columns of help go on below themselves") {
  const Columns set("40");
  CHECK(wrapped("one two three four five six seven eight nine", 2) ==
        "  one two three four five six seven\n  eight nine\n");
  CHECK(wrapped("a bb", 4, "x   ") == "x   a bb\n");
  CHECK(wrapped("", 2, "x") == "x\n");
  CHECK(wrapped("docs/theorems/eliminate_projection.md", 12, "  proof     ") ==
        "  proof     docs/theorems/eliminate_\n            projection.md\n");
  CHECK(fitted("short\n  --flag N        what it does when it is given\n") ==
        "short\n  --flag N        what it does when it\n                  is given\n");
}

TEST_CASE("a table that is too wide breaks its first column, then its rows") {
  Table table({Align::left, Align::right});
  table.row({"pass", "parameters less"});
  table.rule();
  table.row({"eliminate_projection{layer=all,target=best}", "1,024"});
  const std::string full = table.text();
  CHECK(widest(full) == 60);
  {
    const Columns set("50");
    CHECK(table.text() ==
          "pass                             parameters less\n"
          "------------------------------------------------\n"
          "eliminate_projection{layer=all,            1,024\n"
          "target=best}\n");
  }
  Table wide({Align::left, Align::right, Align::right, Align::right});
  wide.row({"matrix", "as it is stored", "in the best gauge", "removed"});
  wide.rule();
  wide.row({"blocks.0", "12", "3", "yes"});
  const Columns set("40");
  CHECK(wide.text() == "matrix\n\nblocks.0\n  as it is stored: 12\n  in the best gauge: 3\n  removed: yes\n");
}
