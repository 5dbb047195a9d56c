#include "pare/data/pattern.h"

#include <doctest/doctest.h>

#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

std::vector<std::string> found(std::string_view expression, std::string_view text) {
  Pattern pattern(expression, "test");
  std::vector<ByteSpan> spans;
  pattern.find_all(text, spans);
  std::vector<std::string> matches;
  for (const ByteSpan& span : spans) {
    matches.emplace_back(text.substr(span.begin, span.end - span.begin));
  }
  return matches;
}

using Matches = std::vector<std::string>;

}  // namespace

TEST_CASE("patterns match characters, not bytes") {
  CHECK(found(R"(\p{L}+)", "schön, 字x 1") == Matches{"schön", "字x"});
  CHECK(found(R"([^\s\p{L}]+)", "schön, 字!? 1") == Matches{",", "!?", "1"});
  CHECK(found(R"(\p{N}{1,3})", "12345 Ⅳ½") == Matches{"123", "45", "Ⅳ½"});
  CHECK(found(R"(\s+(?!\S)|\s+)", "a  b\u3000\u00A0") == Matches{" ", " ", "\u3000\u00A0"});
  CHECK(found(R"([一-龥]+)", "a一龥b龦") == Matches{"一龥"});
  CHECK(found(R"(\u4e00|\x{9fa5}|\x41)", "一龥A") == Matches{"一", "龥", "A"});
  CHECK(found(R"(.)", "a\nü") == Matches{"a", "ü"});
  CHECK(found(R"([\]\-x]+)", "a]-x[") == Matches{"]-x"});
  CHECK(found(R"([a\-c-e]+)", "a-bcde") == Matches{"a-", "cde"});
  CHECK(found(R"(\P{L}+)", "a12é") == Matches{"12"});
  CHECK(found(R"(\p{Han}+)", "字々a") == Matches{"字々"});
  CHECK(found(R"(\d+|\w+$)", "12ab\ncd") == Matches{"12", "ab", "cd"});
}

TEST_CASE("without regard to case, also for the two letters that leave ASCII") {
  CHECK(found("(?i:'s|'ll|'[k])", "'s 'S 'lL 'K '\u017F '\u212A 'x") ==
        Matches{"'s", "'S", "'lL", "'K", "'\u017F", "'\u212A"});
  CHECK(found("(?i:a)b", "Ab aB ab") == Matches{"Ab", "ab"});  // ends with its group
}

TEST_CASE("patterns that are not translated are refused, with what they have") {
  const auto refused = [](std::string_view expression) {
    return message_of<InputError>([&] { Pattern(expression, "file"); });
  };
  CHECK(contains(refused(R"((?<=a)b)"), "(?<"));
  CHECK(contains(refused(R"(\bword)"), "'\\b'"));
  CHECK(contains(refused(R"([a[b]])"), "brackets within"));
  CHECK(contains(refused(R"([a-z&&[^b]])"), "brackets within"));
  CHECK(contains(refused(R"(\p{Thai})"), "Thai"));
  CHECK(contains(refused(R"(\p{N}{1,3}+)"), "after '}'"));
  CHECK(contains(refused(R"((?i:é))"), "beyond ASCII"));
  CHECK(contains(refused(R"((a)"), "without its"));
  CHECK(contains(refused(R"(a))"), "without its"));
  CHECK(contains(refused(R"([a)"), "end"));
  CHECK(contains(refused(R"(a\)"), "end"));
  CHECK(contains(refused(R"(\x{110000})"), "none"));
  CHECK(contains(refused(R"(a*)"), "matches nothing"));
  CHECK(contains(refused(R"(^a)"), "'^'"));
  CHECK(contains(refused(R"(*a)"), "file: the pattern '*a' cannot be compiled"));
  CHECK(contains(refused(R"([z-a])"), "ends before"));
}
