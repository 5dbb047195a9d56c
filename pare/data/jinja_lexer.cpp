// A template as tokens, by the rules of jinja2's lexer with trim_blocks and lstrip_blocks.

#include <algorithm>
#include <array>

#include "pare/data/jinja_syntax.h"
#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare::jinja {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_character(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// One kind of line end, and none at the end.
std::string with_plain_lines(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool before_newline = text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n';
    if (!before_newline) {
      out += text[at] == '\r' ? '\n' : text[at];
    }
  }
  if (out.ends_with('\n')) {
    out.pop_back();
  }
  return out;
}

class Lexer {
 public:
  Lexer(std::string text, const std::string& subject) : text_(std::move(text)), subject_(subject) {}

  std::vector<Token> all() {
    while (at_ < text_.size()) {
      read_data();
    }
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: line {}: {}", subject_, line_, escaped(what)));
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  bool here(std::string_view what) const { return text_.compare(at_, what.size(), what) == 0; }

  void skip_to(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    line_starts_ = end > at_ ? text_[end - 1] == '\n' : line_starts_;
    at_ = end;
  }

  size_t behind_spaces(size_t at) const {
    while (at < text_.size()) {
      const Utf8Character c = character_at(text_, at);
      if (!is_space(c.point)) {
        break;
      }
      at += c.bytes;
    }
    return at;
  }

  // Text up to the next tag, without the white space that the tag takes away; then the tag.
  void read_data() {
    size_t tag = at_;
    while ((tag = text_.find('{', tag)) != std::string::npos) {
      if (tag + 1 < text_.size() && std::string_view("%{#").find(text_[tag + 1]) != std::string_view::npos) {
        break;
      }
      ++tag;
    }
    if (tag == std::string::npos) {
      add(TokenKind::data, text_.substr(at_));
      skip_to(text_.size());
      return;
    }
    const char kind = text_[tag + 1], sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    add_data(text_.substr(at_, tag - at_), kind, sign);
    skip_to(tag + 2);
    if (sign == '-' || sign == '+') {
      skip_to(at_ + 1);
    }
    line_starts_ = false;
    if (kind == '#') {
      read_comment();
    } else if (kind == '%' && read_raw()) {
      return;
    } else {
      read_tag(kind == '%');
    }
  }

  void add_data(std::string data, char kind, char sign) {
    if (sign == '-') {
      data = stripped(data, false, true);
    } else if (sign != '+' && kind != '{') {
      const size_t line = data.rfind('\n') + 1;  // 0 where there is none
      if ((line > 0 || line_starts_) && stripped(std::string_view(data).substr(line), true, false).empty()) {
        data.resize(line);
      }
    }
    if (!data.empty()) {
      add(TokenKind::data, std::move(data));
    }
  }

  // Behind an end such as %}: with - all white space goes, else one line end of a block.
  bool skip_end(std::string_view end, bool trims) {
    if (end != "}}" && at_ < text_.size() && text_[at_] == '+' && text_.compare(at_ + 1, 2, end) == 0) {
      skip_to(at_ + 3);
      return true;
    }
    if (at_ < text_.size() && text_[at_] == '-' && text_.compare(at_ + 1, 2, end) == 0) {
      skip_to(behind_spaces(at_ + 3));
      return true;
    }
    if (!here(end)) {
      return false;
    }
    const bool line = trims && at_ + 2 < text_.size() && text_[at_ + 2] == '\n';
    skip_to(at_ + (line ? 3 : 2));
    return true;
  }

  void read_comment() {
    for (size_t at = at_; (at = text_.find("#}", at)) != std::string::npos; ++at) {
      const bool sign = at > at_ && (text_[at - 1] == '-' || text_[at - 1] == '+');
      skip_to(sign ? at - 1 : at);
      skip_end("#}", true);
      return;
    }
    fail("a comment {# without #}");
  }

  // {% raw %} up to {% endraw %}, which is text.
  bool read_raw() {
    size_t at = behind_spaces(at_);
    if (text_.compare(at, 3, "raw") != 0) {
      return false;
    }
    at = behind_spaces(at + 3);
    const bool strips = text_.compare(at, 3, "-%}") == 0;
    if (!strips && text_.compare(at, 2, "%}") != 0) {
      return false;
    }
    skip_to(strips ? behind_spaces(at + 3) : at + 2);
    for (size_t end = at_; (end = text_.find("{%", end)) != std::string::npos; end += 2) {
      const char sign = end + 2 < text_.size() ? text_[end + 2] : ' ';
      size_t word = behind_spaces(end + (sign == '-' || sign == '+' ? 3 : 2));
      if (text_.compare(word, 6, "endraw") != 0) {
        continue;
      }
      word = behind_spaces(word + 6);
      const size_t before = at_;
      const int line = line_;
      std::string data = text_.substr(at_, end - at_);
      const bool starts = line_starts_;
      skip_to(word);
      if (skip_end("%}", true)) {
        const bool after = std::exchange(line_starts_, starts);
        add_data(std::move(data), '%', sign);
        line_starts_ = after;
        return true;
      }
      at_ = before;
      line_ = line;
      line_starts_ = starts;
    }
    fail("{% raw %} without {% endraw %}");
  }

  void read_tag(bool block) {
    add(block ? TokenKind::block_begin : TokenKind::variable_begin, "");
    std::string open;  // brackets: within them %} and }} are no ends
    while (true) {
      if (at_ >= text_.size()) {
        fail(fmt::format("the template ends within a tag, expected {}", block ? "%}" : "}}"));
      }
      const int line = line_;
      if (open.empty() && skip_end(block ? "%}" : "}}", block)) {
        tokens_.push_back({block ? TokenKind::block_end : TokenKind::variable_end, "", line});
        return;
      }
      if (const size_t behind = behind_spaces(at_); behind > at_) {
        skip_to(behind);
      } else if (is_digit(text_[at_])) {
        read_number();
      } else if (is_name_character(text_[at_])) {
        size_t end = at_;
        while (end < text_.size() && is_name_character(text_[end])) {
          ++end;
        }
        add(TokenKind::name, text_.substr(at_, end - at_));
        skip_to(end);
      } else if (text_[at_] == '\'' || text_[at_] == '"') {
        read_string();
      } else {
        read_operator(open);
      }
    }
  }

  size_t behind_digits(size_t at) const {
    while (at < text_.size() &&
           (is_digit(text_[at]) || (text_[at] == '_' && at + 1 < text_.size() && is_digit(text_[at + 1])))) {
      ++at;
    }
    return at;
  }

  void read_number() {
    const auto byte = [&](size_t at) { return at < text_.size() ? text_[at] : ' '; };
    if (text_[at_] == '0' && std::string_view("bBoOxX").find(byte(at_ + 1)) != std::string_view::npos) {
      fail("a number that is not decimal: pare does not support this in a template");
    }
    size_t end = behind_digits(at_);
    TokenKind kind = TokenKind::integer;
    if (at_ == 0 || text_[at_ - 1] != '.') {
      if (byte(end) == '.' && is_digit(byte(end + 1))) {
        end = behind_digits(end + 1);
        kind = TokenKind::real;
      }
      const size_t sign = byte(end + 1) == '+' || byte(end + 1) == '-' ? 1 : 0;
      if ((byte(end) == 'e' || byte(end) == 'E') && is_digit(byte(end + 1 + sign))) {
        end = behind_digits(end + 1 + sign);
        kind = TokenKind::real;
      }
    }
    std::string number = text_.substr(at_, end - at_);
    std::erase(number, '_');
    if (kind == TokenKind::integer && number.size() > 1 && number[0] == '0' &&
        number.find_first_not_of('0') != std::string::npos) {
      fail(fmt::format("the number {} begins with 0", number));
    }
    add(kind, std::move(number));
    skip_to(end);
  }

  void read_string() {
    const char quote = text_[at_];
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) {
      end += text_[end] == '\\' ? 2 : 1;
    }
    if (end >= text_.size()) {
      fail("a string without its end");
    }
    add(TokenKind::string, unescaped(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    skip_to(end + 1);
  }

  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] != '\\') {
        out += text[at];
        continue;
      }
      const char c = text[++at];  // a string ends in no lone backslash
      static constexpr std::string_view from = "\\'\"abfnrtv", to = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t known = from.find(c); known != from.npos) {
        out += to[known];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_point(out, text.substr(at + 1, digits), digits, 16);
        at += digits;
      } else if (c >= '0' && c <= '7') {
        size_t end = at;
        while (end < text.size() && end < at + 3 && text[end] >= '0' && text[end] <= '7') {
          ++end;
        }
        append_point(out, text.substr(at, end - at), end - at, 8);
        at = end - 1;
      } else if (c == 'N') {
        fail("\\N in a string: pare does not support this in a template");
      } else if (c != '\n') {  // a line that goes on
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void append_point(std::string& out, std::string_view digits, size_t wanted, int base) const {
    static constexpr std::string_view all = "0123456789abcdef";
    uint64_t point = 0;
    for (const char c : digits) {
      const size_t value = all.find(c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c);
      if (value == all.npos || digits.size() < wanted) {
        fail(fmt::format("an escape in a string ends early: '{}'", digits));
      }
      point = point * static_cast<uint64_t>(base) + value;
    }
    if (digits.size() < wanted || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) {
      fail(fmt::format("an escape in a string is no character: '{}'", digits));
    }
    append_utf8(out, static_cast<char32_t>(point));
  }

  void read_operator(std::string& open) {
    static constexpr std::array<std::string_view, 26> operators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                                   "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                   ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto found = std::find_if(operators.begin(), operators.end(), [&](std::string_view op) { return here(op); });
    if (found == operators.end()) {
      fail(fmt::format("unexpected '{}' in a tag", text_.substr(at_, character_at(text_, at_).bytes)));
    }
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) {
        fail(fmt::format("unexpected '{}'", c));
      }
      open.pop_back();
    }
    add(TokenKind::op, std::string(*found));
    skip_to(at_ + found->size());
  }

  std::string text_;
  const std::string& subject_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text, const std::string& subject) {
  if (const std::optional<size_t> wrong = invalid_utf8(text)) {
    throw InputError(fmt::format("{}: the byte at {} is not UTF-8", subject, *wrong));
  }
  return Lexer(with_plain_lines(text), subject).all();
}

}  // namespace pare::jinja
