#include <fmt/format.h>

#include <algorithm>

#include "pare/data/pattern.h"
#include "pare/data/unicode.h"
#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr char32_t long_s = 0x17F, kelvin = 0x212A;  // whose other case is ASCII

class PatternParser {
 public:
  PatternParser(std::string_view expression, const std::string& subject)
      : expression_(expression), subject_(subject), points_(characters_of(expression)) {}

  ParsedPattern parse() {
    while (!at_end()) {
      parse_one();
    }
    if (caseless_.size() != 1) {
      fail("a '(' without its ')'");
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(
        fmt::format("{}: the pattern {} has {}, which is not supported", subject_, quote(expression_), what));
  }

  bool at_end() const { return next_ == points_.size(); }
  char32_t peek(size_t ahead = 0) const { return next_ + ahead < points_.size() ? points_[next_ + ahead] : 0; }
  char32_t take() {
    if (at_end()) {
      fail("an unexpected end");
    }
    return points_[next_++];
  }
  bool take_if(std::u32string_view text) {
    if (std::u32string_view(points_).substr(next_, text.size()) != text) {
      return false;
    }
    next_ += text.size();
    return true;
  }

  void emit(std::string text) { result_.parts.push_back({std::move(text), {}}); }

  size_t atom_of(CharacterAtom atom) {
    const auto found = std::ranges::find(result_.atoms, atom);
    if (found != result_.atoms.end()) {
      return static_cast<size_t>(found - result_.atoms.begin());
    }
    result_.atoms.push_back(std::move(atom));
    return result_.atoms.size() - 1;
  }

  void parse_one() {
    switch (const char32_t c = take()) {
      case '(':
        return open_group();
      case ')':
        if (caseless_.size() == 1) {
          fail("a ')' without its '('");
        }
        caseless_.pop_back();
        return emit(")");
      case '|':
        return emit("|");
      case '*':
      case '+':
      case '?':
        emit(std::string(1, static_cast<char>(c)));
        if (peek() == '+' || peek() == '?') {
          emit(std::string(1, static_cast<char>(take())));
        }
        return;
      case '{':
        return repeat();
      case '[':
        return bracket();
      case '.': {
        CharacterSet set{.items = {{atom_of({.ranges = {{'\n', '\n'}}})}}, .negated = true};
        return result_.parts.push_back({"", std::move(set)});
      }
      case '$':
        return emit("$");
      case '^':
        fail("'^'");
      default: {
        CharacterSet set;
        if (c == '\\') {
          escape(set, false);
        } else {
          add_range(set, c, c);
        }
        result_.parts.push_back({"", std::move(set)});
      }
    }
  }

  void open_group() {
    static const std::vector<std::pair<std::u32string_view, std::string>> known = {
        {U"?:", "(?:"}, {U"?=", "(?="}, {U"?!", "(?!"}, {U"?>", "(?>"}, {U"?i:", "(?:"}};
    if (peek() != '?') {
      caseless_.push_back(caseless_.back());
      return emit("(?:");
    }
    for (const auto& [theirs, ours] : known) {
      if (take_if(theirs)) {
        caseless_.push_back(caseless_.back() || theirs == U"?i:");
        return emit(ours);
      }
    }
    fail(fmt::format("a group of the kind '(?{}'", utf8_of(peek(1))));
  }

  void repeat() {
    std::string text = "{";
    while (peek() != '}') {
      const char32_t c = take();
      if (c != ',' && (c < '0' || c > '9')) {
        fail("a '{' that counts nothing");
      }
      text.push_back(static_cast<char>(c));
    }
    take();
    if (peek() == '+') {
      fail("a '+' after '}'");  // repeats once more in Oniguruma, and is possessive elsewhere
    }
    if (text.size() < 2 || text[1] == ',') {
      fail("a '{' without a least number");
    }
    emit(text + "}");
    if (peek() == '?') {
      take();
      emit("?");
    }
  }

  void add_range(CharacterSet& set, char32_t first, char32_t last) {
    set.items.push_back({atom_of({.ranges = {{first, last}}})});
    if (!caseless_.back()) {
      return;
    }
    if (last >= 0x80) {
      fail("letters beyond ASCII under (?i:");
    }
    for (char32_t c = std::max<char32_t>(first, 'A'); c <= std::min<char32_t>(last, 'z'); ++c) {
      const char32_t other = c ^ 0x20;
      if ((c | 0x20) < 'a' || (c | 0x20) > 'z') {
        continue;
      }
      set.items.push_back({atom_of({.ranges = {{other, other}}})});
      if ((c | 0x20) == 's' || (c | 0x20) == 'k') {
        const char32_t third = (c | 0x20) == 's' ? long_s : kelvin;
        set.items.push_back({atom_of({.ranges = {{third, third}}})});
      }
    }
  }

  char32_t hexadecimal(size_t digits) {
    char32_t value = 0;
    for (size_t n = 0; n < digits; ++n) {
      const char32_t c = take();
      const char32_t digit = c >= '0' && c <= '9'                     ? c - '0'
                             : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                      : 16;
      if (digit == 16) {
        fail("an escape without its hexadecimal digits");
      }
      value = value * 16 + digit;
    }
    return value;
  }

  // A single character after a backslash; nothing where it is a class.
  std::optional<char32_t> escaped_character(char32_t c) {
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'u':
        return hexadecimal(4);
      case 'x': {
        if (peek() != '{') {
          return hexadecimal(2);
        }
        const size_t begin = ++next_;
        const size_t end = points_.find(U'}', begin);
        if (end == std::u32string::npos || end == begin || end - begin > 6) {
          fail("an escape without its hexadecimal digits");
        }
        const char32_t value = hexadecimal(end - begin);
        take();
        if (value > highest_character) {
          fail("a character that is none");
        }
        return value;
      }
      default:
        if (c < 0x80 && ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))) {
          return std::nullopt;
        }
        return c;
    }
  }

  void escape(CharacterSet& set, bool in_bracket) {
    const char32_t c = take();
    if (const std::optional<char32_t> character = escaped_character(c)) {
      return in_bracket ? range_from(set, *character) : add_range(set, *character, *character);
    }
    const auto flagged = [&](CharacterFlag flag, bool negated) {
      set.items.push_back({atom_of({.flags = static_cast<uint16_t>(flag)}), negated});
    };
    switch (c) {
      case 's':
      case 'S':
        return flagged(CharacterFlag::white, c == 'S');
      case 'w':
      case 'W':
        return flagged(CharacterFlag::word, c == 'W');
      case 'd':
      case 'D':
        return set.items.push_back({atom_of({.categories = UnicodeTable::categories_named("Nd")}), c == 'D'});
      case 'p':
      case 'P':
        return property(set, c == 'P');
      default:
        fail(fmt::format("'\\{}'", utf8_of(c)));
    }
  }

  void property(CharacterSet& set, bool negated) {
    std::string name;
    if (peek() == '{') {
      take();
      if (peek() == '^') {
        take();
        negated = !negated;
      }
      while (peek() != '}') {
        append_utf8(name, take());
      }
      take();
    }
    if (name == "Han") {
      return set.items.push_back({atom_of({.flags = static_cast<uint16_t>(CharacterFlag::han)}), negated});
    }
    const uint32_t categories = UnicodeTable::categories_named(name);
    if (categories == 0) {
      fail(fmt::format("'\\p{{{}}}'", name));
    }
    if (caseless_.back() && name.starts_with('L') && name.size() > 1 && name != "Letter" && name != "Lo") {
      fail(fmt::format("'\\p{{{}}}' under (?i:", name));
    }
    set.items.push_back({atom_of({.categories = categories}), negated});
  }

  // In brackets, with `first` read already: alone, or the beginning of a range.
  void range_from(CharacterSet& set, char32_t first) {
    if (peek() != '-' || peek(1) == ']' || peek(1) == 0) {
      return add_range(set, first, first);
    }
    take();
    char32_t last = take();
    if (last == '\\') {
      const std::optional<char32_t> character = escaped_character(take());
      if (!character) {
        fail("a range that ends with a class");
      }
      last = *character;
    }
    if (last < first) {
      fail("a range that ends before it begins");
    }
    add_range(set, first, last);
  }

  void bracket() {
    CharacterSet set;
    if (peek() == '^') {
      take();
      set.negated = true;
    }
    for (bool first = true; first || peek() != ']'; first = false) {
      const char32_t c = take();
      if (c == '[' || (c == '&' && peek() == '&') || (first && c == ']')) {
        fail("brackets within brackets");
      }
      if (c == '\\') {
        escape(set, true);
      } else {
        range_from(set, c);
      }
    }
    take();
    result_.parts.push_back({"", std::move(set)});
  }

  std::string_view expression_;
  const std::string& subject_;
  std::u32string points_;
  size_t next_ = 0;
  std::vector<bool> caseless_ = {false};  // of each open group
  ParsedPattern result_;
};

}  // namespace

ParsedPattern parse_pattern(std::string_view expression, const std::string& subject) {
  return PatternParser(expression, subject).parse();
}

}  // namespace pare
