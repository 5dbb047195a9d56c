#include "pare/support/text.h"

#include <doctest/doctest.h>
#include <fnmatch.h>

#include <cstdlib>
#include <random>

#include "tests/support/helpers.h"

using namespace pare;

TEST_CASE("the nearest word is a likely misspelling or nothing") {
  std::vector<std::string> commands = {"audit", "rewrite", "verify", "init"};
  CHECK(nearest("adit", commands) == "audit");
  CHECK(nearest("reiwrte", commands) == "rewrite");
  CHECK(nearest("verfiy", commands) == "verify");
  CHECK(nearest("banana", commands).empty());
  CHECK(nearest("x", commands).empty());
  CHECK(nearest("", commands).empty());
  CHECK(nearest("audit", {}).empty());
}

TEST_CASE("untrusted text is made harmless for a terminal") {
  CHECK(quote("blocks.0.weight") == "'blocks.0.weight'");
  CHECK(quote("schön") == "'schön'");
  CHECK(quote("a\x1b[31m\n\x7f") == "'a\\x1b[31m\\x0a\\x7f'");
  CHECK(quote("\xff\xc3") == "'\\xff\\xc3'");
  CHECK(quote(std::string_view("a\0b", 3)) == "'a\\x00b'");
  CHECK(quote("\xc2\x9b"
              "31m") == "'\\xc2\\x9b31m'");
  CHECK(escaped(std::string(1'000'000, 'a')).size() < 500);
}

TEST_CASE("numbers are written for people") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(33'554'432) == "33,554,432");
  CHECK(with_commas(-1'000) == "-1,000");
  CHECK(with_commas(-999) == "-999");
  CHECK(with_commas(INT64_MIN) == "-9,223,372,036,854,775,808");
  CHECK(human_count(999) == "999");
  CHECK(human_count(1'500) == "1.5K");
  CHECK(human_count(124'439'808) == "124M");
  CHECK(human_count(6'857'302'016) == "6.9B");
  CHECK(human_count(999'999) == "1M");
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(13'700'000'000) == "13.7 GB");
  CHECK(human_bytes(4'000) == "4 KB");
  CHECK(human_time(42.4) == "42 s");
  CHECK(human_time(185) == "3 min 05 s");
  CHECK(human_time(7620) == "2 h 07 min");
  CHECK(human_time(1e300) == "a very long time");
}

TEST_CASE("globs match whole names") {
  CHECK(glob_match("*", ""));
  CHECK(glob_match("blocks.*.scores", "blocks.3.attention.scores"));
  CHECK_FALSE(glob_match("blocks.*.scores", "blocks.3.attention.scores2"));
  CHECK(glob_match("residual.?", "residual.3"));
  CHECK_FALSE(glob_match("residual.?", "residual.12"));
  CHECK(glob_match("h.[0-2].w", "h.1.w"));
  CHECK_FALSE(glob_match("h.[!0-2].w", "h.1.w"));
  CHECK(glob_match("a[", "a["));
  CHECK(glob_match("\\*", "*"));
  CHECK_FALSE(glob_match("\\*", "a"));
  CHECK_FALSE(glob_match(std::string(50, '*') + "b", std::string(10'000, 'a')));
}

TEST_CASE("globs agree with the system's fnmatch") {
  std::mt19937 random(7);
  auto word = [&](std::string_view alphabet, size_t longest) {
    std::string text;
    for (size_t length = random() % (longest + 1); length > 0; --length) {
      text += alphabet[random() % alphabet.size()];
    }
    return text;
  };
  int matches = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string pattern = word("aab?**b[a]!-", 8), name = word("ab", 6);
    CAPTURE(pattern);
    CAPTURE(name);
    bool expected = ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    matches += expected ? 1 : 0;
    REQUIRE(glob_match(pattern, name) == expected);
  }
  CHECK(matches > 1'000);
}

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
