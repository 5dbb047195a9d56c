// Methods of strings, lists and dicts, as Python has them.

#include <algorithm>
#include <set>

#include "pare/data/jinja_evaluator.h"
#include "pare/data/unicode.h"
#include "pare/data/utf8.h"

namespace pare::jinja {

namespace {

using KnownNames = std::set<std::string_view>;

const KnownNames& attributes_of(const Value& value) {
  static const KnownNames text = {
      "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
      "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
      "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
      "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
      "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
      "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
      "swapcase",   "title",        "translate",    "upper",   "zfill"};
  static const KnownNames list = {"append", "clear", "copy",   "count",   "extend", "index",
                                  "insert", "pop",   "remove", "reverse", "sort"};
  static const KnownNames tuple = {"count", "index"}, range = {"count", "index", "start", "stop", "step"};
  static const KnownNames view = {"isdisjoint", "mapping"}, none = {};
  static const KnownNames dict = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                  "pop",   "popitem", "setdefault", "update", "values"};
  static const KnownNames number = {"real",       "imag",     "numerator", "denominator", "conjugate",
                                    "bit_length", "to_bytes", "bit_count", "from_bytes",  "as_integer_ratio",
                                    "is_integer", "hex",      "fromhex"};
  if (value.string() != nullptr) {
    return text;
  }
  if (value.dict() != nullptr) {
    return dict;
  }
  if (const Sequence* sequence = value.sequence()) {
    return sequence->flavour == Flavour::list    ? list
           : sequence->flavour == Flavour::tuple ? tuple
           : sequence->flavour == Flavour::range ? range
                                                 : view;
  }
  return value.number() ? number : none;
}

// Characters whose other case is not in our table.
bool has_other_case(char32_t point) {
  static const uint32_t cased = UnicodeTable::categories_named("Ll") | UnicodeTable::categories_named("Lt") |
                                UnicodeTable::categories_named("Nl");
  return (UnicodeTable::get().category_bit(point) & cased) != 0 || point == 0x345 ||
         (point >= 0x24D0 && point <= 0x24E9);
}

void append_upper(std::string& out, char32_t point) {
  if (point >= 0x80 && has_other_case(point)) {
    lacking("the upper case of '{}'", utf8_of(point));
  }
  append_utf8(out, point >= 'a' && point <= 'z' ? point - 32 : point);
}

void append_lower(std::string& out, char32_t point) {
  if (point == 0x3A3) {  // whose lower case depends on the word
    lacking("the lower case of 'Σ'");
  }
  UnicodeTable::get().append_lower(point, out);
}

bool is_cased(char32_t point) {
  if (point >= 0x80 && is_letter(point)) {
    lacking("the case of '{}'", utf8_of(point));
  }
  return (point >= 'a' && point <= 'z') || (point >= 'A' && point <= 'Z');
}

const std::string& text_of(const Value* value, std::string_view what) {
  if (value == nullptr || value->string() == nullptr) {
    complain("{} takes a string, not {}", what, value == nullptr ? "nothing" : value->type());
  }
  return *value->string();
}

int64_t whole_of(const Value* value, int64_t without, std::string_view what) {
  if (value == nullptr) {
    return without;
  }
  if (!value->integer()) {
    complain("{} takes a whole number, not {}", what, value->type());
  }
  return *value->integer();
}

std::vector<std::string> split_at_spaces(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string> parts;
  text = stripped(text, !from_right, from_right);
  while (!text.empty()) {
    if (std::ssize(parts) == most) {
      parts.emplace_back(text);
      break;
    }
    size_t at = from_right ? text.size() : 0;
    if (from_right) {
      while (at > 0 && !is_space(character_before(text, at))) {
        at -= utf8_of(character_before(text, at)).size();
      }
      parts.emplace_back(text.substr(at));
      text = stripped(text.substr(0, at), false, true);
    } else {
      while (at < text.size() && !is_space(character_at(text, at).point)) {
        at += character_at(text, at).bytes;
      }
      parts.emplace_back(text.substr(0, at));
      text = stripped(text.substr(at), true, false);
    }
  }
  if (from_right) {
    std::reverse(parts.begin(), parts.end());
  }
  return parts;
}

std::vector<std::string> split_at(std::string_view text, std::string_view at, int64_t most, bool from_right,
                                  StepBudget& budget) {
  std::vector<std::string> parts;
  while (std::ssize(parts) != most) {
    const size_t found = from_right ? find_last_text(text, at, budget) : find_text(text, at, 0, budget);
    if (found == text.npos) {
      break;
    }
    parts.emplace_back(from_right ? text.substr(found + at.size()) : text.substr(0, found));
    text = from_right ? text.substr(0, found) : text.substr(found + at.size());
  }
  parts.emplace_back(text);
  if (from_right) {
    std::reverse(parts.begin(), parts.end());
  }
  return parts;
}

Value texts(const std::vector<std::string>& parts, StepBudget& budget, Flavour flavour = Flavour::list) {
  std::vector<Value> items;
  for (const std::string& part : parts) {
    budget.pay_bytes(part.size());
    items.push_back(Value::text(part));
  }
  return Value::list(std::move(items), flavour);
}

Value split(const std::string& text, const std::string& name, const Given& given, StepBudget& budget) {
  given.allow(name, 2, {"sep", "maxsplit"});
  const Value* separator = given.find(0, "sep");
  const int64_t most = whole_of(given.find(1, "maxsplit"), -1, name);
  const bool from_right = name == "rsplit";
  if (separator == nullptr || separator->is_none()) {
    return texts(split_at_spaces(text, most, from_right), budget);
  }
  if (text_of(separator, name).empty()) {
    complain("{} at an empty string", name);
  }
  return texts(split_at(text, *separator->string(), most, from_right, budget), budget);
}

// A string, or a tuple of them.
bool has_end(const std::string& text, const std::string& name, const Given& given, StepBudget& budget) {
  if (given.positional.size() > 1) {
    lacking("{} within a part of a string", name);
  }
  given.allow(name, 1);
  const Value* with = given.find(0, "");
  const auto one = [&](const Value& end) {
    const std::string& wanted = text_of(&end, name);
    budget.pay_bytes(wanted.size());
    return name == "startswith" ? text.starts_with(wanted) : text.ends_with(wanted);
  };
  const Sequence* several = with == nullptr ? nullptr : with->sequence();
  if (several != nullptr && several->flavour == Flavour::tuple) {
    return std::any_of(several->items.begin(), several->items.end(), one);
  }
  return one(with == nullptr ? Value() : *with);
}

Value found_at(const std::string& text, const std::string& name, const Given& given, StepBudget& budget) {
  if (given.positional.size() > 1) {
    lacking("{} within a part of a string", name);
  }
  given.allow(name, 1);
  const std::string& wanted = text_of(given.find(0, ""), name);
  if (name == "count") {
    if (wanted.empty()) {
      return Value(static_cast<int64_t>(count_characters(text)) + 1);
    }
    int64_t count = 0;
    for (size_t at = 0; (at = find_text(text, wanted, at, budget)) != text.npos; at += wanted.size()) {
      ++count;
    }
    return Value(count);
  }
  const size_t at = name.starts_with('r') ? find_last_text(text, wanted, budget) : find_text(text, wanted, 0, budget);
  if (at == text.npos && name.ends_with("index")) {
    complain("{}: the string is not there", name);
  }
  return Value(at == text.npos ? int64_t{-1} : static_cast<int64_t>(count_characters(text.substr(0, at))));
}

Value parted(const std::string& text, const std::string& name, const Given& given, StepBudget& budget) {
  given.allow(name, 1);
  const std::string& at = text_of(given.find(0, ""), name);
  if (at.empty()) {
    complain("{} at an empty string", name);
  }
  const bool from_right = name == "rpartition";
  const size_t found = from_right ? find_last_text(text, at, budget) : find_text(text, at, 0, budget);
  if (found == text.npos) {
    return from_right ? texts({"", "", text}, budget, Flavour::tuple) : texts({text, "", ""}, budget, Flavour::tuple);
  }
  return texts({text.substr(0, found), at, text.substr(found + at.size())}, budget, Flavour::tuple);
}

std::string titled(const std::string& text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    const bool cased = is_cased(c.point);
    inside&& cased ? append_lower(out, c.point) : append_upper(out, c.point);
    inside = cased;
    at += c.bytes;
  }
  return out;
}

Value text_method(const Value& self, const std::string& name, const Given& given, StepBudget& budget) {
  const std::string& text = *self.string();
  budget.pay_bytes(text.size());
  if (name == "startswith" || name == "endswith") {
    return Value(has_end(text, name, given, budget));
  }
  if (self.is_safe()) {
    lacking("{} of a string that is marked as safe", name);
  }
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    given.allow(name, 1);
    return Value::text(stripped_of(text, given.find(0, ""), name != "rstrip", name != "lstrip", budget));
  }
  if (name == "split" || name == "rsplit") {
    return split(text, name, given, budget);
  }
  if (name == "replace") {
    given.allow(name, 3);
    const int64_t most = whole_of(given.find(2, ""), -1, name);
    return Value::text(
        replaced(text, text_of(given.find(0, ""), name), text_of(given.find(1, ""), name), most, budget));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    return found_at(text, name, given, budget);
  }
  if (name == "partition" || name == "rpartition") {
    return parted(text, name, given, budget);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    given.allow(name, 1);
    const std::string& part = text_of(given.find(0, ""), name);
    const bool begin = name == "removeprefix";
    const bool there = begin ? text.starts_with(part) : text.ends_with(part);
    return Value::text(!there ? text : begin ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
  }
  if (name == "join") {
    given.allow(name, 1);
    const Value* parts = given.find(0, "");
    std::string out;
    bool first = true;
    for (const Value& part : items_of(parts == nullptr ? Value::none() : *parts, budget)) {
      out += (std::exchange(first, false) ? "" : text) + text_of(&part, "join");
      budget.pay_bytes(text.size() + part.string()->size());
    }
    return Value::text(std::move(out));
  }
  given.allow(name, 0);
  if (name == "upper" || name == "lower") {
    return Value::text(name == "upper" ? upper_text(text) : lower_text(text));
  }
  if (name == "capitalize" || name == "title") {
    return Value::text(name == "title" ? titled(text) : capital_text(text));
  }
  if (name == "splitlines") {
    return texts(lines_of(text), budget);
  }
  if (name == "isspace") {
    return Value(!text.empty() && stripped(text, true, false).empty());
  }
  if ((name == "isdigit" || name == "isalpha" || name == "isalnum") && is_ascii(text)) {
    return Value(!text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
      const bool digit = c >= '0' && c <= '9', letter = (c | 32) >= 'a' && (c | 32) <= 'z';
      return (digit && name != "isalpha") || (letter && name != "isdigit");
    }));
  }
  lacking("the method {} of a string", name);
}

Value dict_method(const Value& self, const std::string& name, const Given& given, StepBudget& budget) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    given.allow(name, 2);
    const Value* key = given.find(0, "");
    if (key == nullptr) {
      complain("get takes a key");
    }
    const Value* found = key->is_undefined() ? nullptr : dict.find(*key, budget);
    const Value* without = given.find(1, "");
    return found != nullptr ? *found : without != nullptr ? *without : Value::none();
  }
  given.allow(name, 0);
  if (name == "copy") {
    return self;
  }
  if (name != "items" && name != "keys" && name != "values") {
    lacking("the method {} of a dict", name);
  }
  std::vector<Value> items;
  budget.pay(dict.entries.size());
  for (const auto& [key, value] : dict.entries) {
    items.push_back(name == "keys" ? key : name == "values" ? value : Value::list({key, value}, Flavour::tuple));
  }
  return Value::list(std::move(items), name == "keys"     ? Flavour::keys
                                       : name == "values" ? Flavour::values
                                                          : Flavour::items);
}

}  // namespace

bool has_method(const Value& of, const std::string& name) {
  return attributes_of(of).contains(name);
}

Value call_method(const Value& self, const std::string& name, const Given& given, StepBudget& budget) {
  if (self.string() != nullptr) {
    return text_method(self, name, given, budget);
  }
  if (self.dict() != nullptr) {
    return dict_method(self, name, given, budget);
  }
  const Sequence* sequence = self.sequence();
  if (sequence != nullptr && (name == "count" || name == "index")) {
    given.allow(name, 1);
    const Value* wanted = given.find(0, "");
    int64_t count = 0;
    for (size_t n = 0; wanted != nullptr && n < sequence->items.size(); ++n) {
      const bool same = equal(sequence->items[n], *wanted, budget);
      if (same && name == "index") {
        return Value(static_cast<int64_t>(n));
      }
      count += same ? 1 : 0;
    }
    if (wanted == nullptr || name == "index") {
      complain("{}: it is not there", name);
    }
    return Value(count);
  }
  lacking("the method {} of {}", name, self.type());
}

std::string upper_text(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes) {
    append_upper(out, character_at(text, at).point);
  }
  return out;
}

std::string lower_text(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes) {
    append_lower(out, character_at(text, at).point);
  }
  return out;
}

std::string capital_text(const std::string& text) {
  if (text.empty()) {
    return text;
  }
  const size_t first = character_at(text, 0).bytes;
  return upper_text(text.substr(0, first)) + lower_text(text.substr(first));
}

// jinja2's own: words begin behind white space and some brackets.
std::string title_by_filter(const std::string& text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    const bool between =
        is_space(c.point) ||
        (c.point < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.point)) != std::string_view::npos);
    between ? append_utf8(out, c.point) : inside ? append_lower(out, c.point) : append_upper(out, c.point);
    inside = !between;
    at += c.bytes;
  }
  return out;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                     StepBudget& budget) {
  std::string out;
  size_t at = 0;
  while (most != 0 && at <= text.size()) {
    const size_t found = find_text(text, from, at, budget);
    if (found == text.npos) {
      break;
    }
    out.append(text, at, found - at);
    out += to;
    budget.pay_bytes(to.size());
    --most;
    at = found + from.size();
    if (from.empty()) {  // before each character, and at the end
      if (at == text.size()) {
        return out;
      }
      out.append(text, at, character_at(text, at).bytes);
      at += character_at(text, at).bytes;
    }
  }
  out.append(text, std::min(at, text.size()), std::string::npos);
  budget.pay_bytes(out.size());
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  static constexpr std::u32string_view ends = U"\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029";
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    const size_t next = at + c.bytes;
    if (ends.find(c.point) == ends.npos) {
      at = next;
      continue;
    }
    lines.push_back(text.substr(begin, at - begin));
    at = begin = next + (c.point == '\r' && text.compare(next, 1, "\n") == 0 ? 1 : 0);
  }
  if (begin < text.size()) {
    lines.push_back(text.substr(begin));
  }
  return lines;
}

std::string stripped_of(const std::string& text, const Value* characters, bool left, bool right, StepBudget& budget) {
  if (characters == nullptr || characters->is_none()) {
    return std::string(stripped(text, left, right));
  }
  const std::u32string given = characters_of(text_of(characters, "strip"));
  budget.pay(1 + given.size());
  const std::set<char32_t> all(given.begin(), given.end());
  std::string_view rest = text;
  while (left && !rest.empty() && all.contains(character_at(rest, 0).point)) {
    rest.remove_prefix(character_at(rest, 0).bytes);
  }
  while (right && !rest.empty() && all.contains(character_before(rest, rest.size()))) {
    rest.remove_suffix(utf8_of(character_before(rest, rest.size())).size());
  }
  return std::string(rest);
}

}  // namespace pare::jinja
