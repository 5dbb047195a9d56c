// Values as text: as Python prints them, and as JSON.

#include <charconv>
#include <cmath>

#include "pare/data/jinja_value.h"
#include "pare/data/unicode.h"
#include "pare/data/utf8.h"

namespace pare::jinja {

namespace {

void append_escape(std::string& out, char32_t point) {
  out += point < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(point))
         : point < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(point))
                           : fmt::format("\\U{:08x}", static_cast<uint32_t>(point));
}

bool is_printable(char32_t point) {
  static const uint32_t hidden = UnicodeTable::categories_named("Cc") | UnicodeTable::categories_named("Cf") |
                                 UnicodeTable::categories_named("Co") | UnicodeTable::categories_named("Cs") |
                                 UnicodeTable::categories_named("Z");
  const uint32_t category = UnicodeTable::get().category_bit(point);
  return point == ' ' || (category != 0 && (category & hidden) == 0);
}

std::string quoted_text(std::string_view text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    if (c.point == '\n' || c.point == '\r' || c.point == '\t') {
      out += c.point == '\n' ? "\\n" : c.point == '\r' ? "\\r" : "\\t";
    } else if (c.point == '\\' || c.point == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c.point);
    } else if (is_printable(c.point)) {
      out += text.substr(at, c.bytes);
    } else {
      append_escape(out, c.point);
    }
    at += c.bytes;
  }
  return out + quote;
}

std::string joined_reprs(const std::vector<Value>& items, StepBudget& budget) {
  std::string out;
  for (const Value& item : items) {
    out += (out.empty() ? "" : ", ") + repr(item, budget);
    budget.pay();
  }
  return out;
}

std::string repr_of(const Sequence& sequence, StepBudget& budget) {
  const std::string items = joined_reprs(sequence.items, budget);
  switch (sequence.flavour) {
    case Flavour::list:
      return "[" + items + "]";
    case Flavour::tuple:
      return "(" + items + (sequence.items.size() == 1 ? ",)" : ")");
    case Flavour::keys:
      return "dict_keys([" + items + "])";
    case Flavour::values:
      return "dict_values([" + items + "])";
    case Flavour::items:
      return "dict_items([" + items + "])";
    case Flavour::range:
      break;
  }
  lacking("a range as text");
}

std::string repr_of(const Dict& dict, StepBudget& budget) {
  std::string out;
  for (const auto& [key, value] : dict.entries) {
    out += (out.empty() ? "" : ", ") + repr(key, budget) + ": " + repr(value, budget);
    budget.pay();
  }
  return "{" + out + "}";
}

void append_json_text(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    const size_t known = std::string_view("\"\\\b\f\n\r\t").find(static_cast<char>(c.point));
    if (c.point < 0x80 && c.point != 0 && known != std::string_view::npos) {
      out += '\\';
      out += "\"\\bfnrt"[known];
    } else if (c.point < 0x20 || (ascii && c.point >= 0x7F && c.point < 0x10000)) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.point));
    } else if (ascii && c.point >= 0x10000) {
      const uint32_t rest = static_cast<uint32_t>(c.point) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    } else {
      out += text.substr(at, c.bytes);
    }
    at += c.bytes;
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, StepBudget& budget) : style_(style), budget_(budget) {}

  void write(const Value& value, int level) {
    budget_.pay();
    if (const std::string* text = value.string()) {
      append_json_text(out, *text, style_.ascii);
      budget_.pay_bytes(text->size());
    } else if (const Sequence* sequence = value.sequence(); sequence && sequence->flavour <= Flavour::tuple) {
      write_all('[', ']', sequence->items.size(), level, [&](size_t n) { write(sequence->items[n], level + 1); });
    } else if (const Dict* dict = value.dict()) {
      const std::vector<std::pair<Value, Value>> entries = ordered(*dict);
      write_all('{', '}', entries.size(), level, [&](size_t n) {
        const std::string key = key_text(entries[n].first);
        budget_.pay_bytes(key.size() + style_.after_key.size());
        append_json_text(out, key, style_.ascii);
        out += style_.after_key;
        write(entries[n].second, level + 1);
      });
    } else {
      out += scalar(value);
    }
  }

  std::string out;

 private:
  template <class Each>
  void write_all(char open, char close, size_t count, int level, Each each) {
    out += open;
    for (size_t n = 0; n < count; ++n) {
      out += n > 0 ? style_.between : "";
      budget_.pay_bytes(style_.between.size());
      new_line(level + 1);
      each(n);
    }
    if (count > 0) {
      new_line(level);
    }
    out += close;
  }

  void new_line(int level) {
    if (style_.indent) {
      out += '\n';
      for (int n = 0; n < level; ++n) {
        out += *style_.indent;
      }
      budget_.pay_bytes(style_.indent->size() * static_cast<size_t>(level));
    }
  }

  std::vector<std::pair<Value, Value>> ordered(const Dict& dict) {
    std::vector<std::pair<Value, Value>> entries = dict.entries;
    if (style_.sorted) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto& a, const auto& b) { return less(a.first, b.first, budget_); });
    }
    return entries;
  }

  static std::string scalar(const Value& value) {
    if (value.is_none()) {
      return "null";
    }
    if (const bool* flag = value.as<bool>()) {
      return *flag ? "true" : "false";
    }
    if (const int64_t* whole = value.as<int64_t>()) {
      return fmt::format("{}", *whole);
    }
    if (const double* number = value.as<double>()) {
      return std::isnan(*number)   ? "NaN"
             : std::isinf(*number) ? (*number > 0 ? "Infinity" : "-Infinity")
                                   : number_text(*number);
    }
    complain("tojson: an object of type {} is not JSON", value.type());
  }

  static std::string key_text(const Value& key) { return key.string() != nullptr ? *key.string() : scalar(key); }

  const JsonStyle& style_;
  StepBudget& budget_;
};

}  // namespace

std::string number_text(double number) {
  if (std::isnan(number) || std::isinf(number)) {
    return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
  }
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent >= 16) {
    return text;
  }
  const auto plain = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed).ptr;
  text.assign(buffer, plain);
  return text.find('.') == text.npos ? text + ".0" : text;
}

std::string repr(const Value& value, StepBudget& budget) {
  std::string out;
  if (const std::string* text = value.string()) {
    if (value.is_safe()) {
      lacking("what is safe, within a list, as text");
    }
    out = quoted_text(*text);
  } else if (const Sequence* sequence = value.sequence()) {
    out = repr_of(*sequence, budget);
  } else if (const Dict* dict = value.dict()) {
    out = repr_of(*dict, budget);
  } else if (value.is_undefined()) {
    out = "Undefined";
  } else {
    return str(value, budget);
  }
  budget.pay_bytes(out.size());
  return out;
}

std::string str(const Value& value, StepBudget& budget) {
  if (const std::string* text = value.string()) {
    budget.pay_bytes(text->size());
    return *text;
  }
  if (value.is_undefined()) {
    return "";
  }
  if (value.is_none()) {
    return "None";
  }
  if (const bool* flag = value.as<bool>()) {
    return *flag ? "True" : "False";
  }
  if (const int64_t* whole = value.as<int64_t>()) {
    return fmt::format("{}", *whole);
  }
  if (const double* number = value.as<double>()) {
    return number_text(*number);
  }
  if (value.sequence() != nullptr || value.dict() != nullptr) {
    return repr(value, budget);
  }
  lacking("an object of type {} as text", value.type());
}

std::string json_of(const Value& value, const JsonStyle& style, StepBudget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return std::move(writer.out);
}

bool is_space(char32_t point) {
  return (point >= 0x1C && point <= 0x1F) || UnicodeTable::get().is(point, CharacterFlag::white);
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Utf8Character c = character_at(text, 0);
    if (!is_space(c.point)) {
      break;
    }
    text.remove_prefix(c.bytes);
  }
  while (right && !text.empty() && is_space(character_before(text, text.size()))) {
    text.remove_suffix(utf8_of(character_before(text, text.size())).size());
  }
  return text;
}

}  // namespace pare::jinja
