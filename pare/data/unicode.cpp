#include "pare/data/unicode.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "pare/data/utf8.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// In the order of their bits, from 1 on.
constexpr std::array<std::string_view, 28> category_names = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                                             "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                                             "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

constexpr std::array<std::pair<std::string_view, std::string_view>, 14> long_names = {{{"Letter", "L"},
                                                                                       {"Mark", "M"},
                                                                                       {"Number", "N"},
                                                                                       {"Punctuation", "P"},
                                                                                       {"Symbol", "S"},
                                                                                       {"Separator", "Z"},
                                                                                       {"Uppercase_Letter", "Lu"},
                                                                                       {"Lowercase_Letter", "Ll"},
                                                                                       {"Titlecase_Letter", "Lt"},
                                                                                       {"Modifier_Letter", "Lm"},
                                                                                       {"Other_Letter", "Lo"},
                                                                                       {"Nonspacing_Mark", "Mn"},
                                                                                       {"Decimal_Number", "Nd"},
                                                                                       {"Control", "Cc"}}};

constexpr std::array<std::pair<std::string_view, CharacterFlag>, 9> flag_names = {{
    {"white", CharacterFlag::white},
    {"word", CharacterFlag::word},
    {"han", CharacterFlag::han},
    {"numeric", CharacterFlag::numeric},
    {"mark", CharacterFlag::mark},
    {"bert_punctuation", CharacterFlag::bert_punctuation},
    {"bert_removed", CharacterFlag::bert_removed},
    {"bert_mark", CharacterFlag::bert_mark},
    {"bert_chinese", CharacterFlag::bert_chinese},
}};

std::string_view next_word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

// A number at the front of `text`, which loses it, and the character after it where that is `then`.
int64_t take_number(std::string_view& text, int base, char then) {
  int64_t number = 0;
  const std::from_chars_result read = std::from_chars(text.data(), text.data() + text.size(), number, base);
  PARE_CHECK(read.ec == std::errc(), "unicode.txt has something else than a number");
  text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  if (!text.empty() && text.front() == then) {
    text.remove_prefix(1);
  }
  return number;
}

struct PointRange {
  char32_t first, last;
};

PointRange take_range(std::string_view& word) {
  const char32_t first = static_cast<char32_t>(take_number(word, 16, '\0'));
  if (word.empty() || word.front() != '-') {
    return {first, first};
  }
  word.remove_prefix(1);
  return {first, static_cast<char32_t>(take_number(word, 16, '\0'))};
}

// "=41.300": characters after a sign.
std::u32string take_points(std::string_view word) {
  word.remove_prefix(1);
  std::u32string points;
  while (!word.empty()) {
    points.push_back(static_cast<char32_t>(take_number(word, 16, '.')));
  }
  return points;
}

uint64_t pair_key(char32_t first, char32_t second) {
  return static_cast<uint64_t>(first) << 32 | second;
}

// Hangul syllables are computed, as Unicode's chapter 3.12 has it.
constexpr char32_t syllables = 0xAC00, leads = 0x1100, vowels = 0x1161, trails = 0x11A7;
constexpr char32_t lead_count = 19, vowel_count = 21, trail_count = 28;
constexpr char32_t syllable_count = lead_count * vowel_count * trail_count;

}  // namespace

UnicodeTable::UnicodeTable() : categories_(highest_character + 1), flags_(highest_character + 1) {
  for (const std::string_view line : unicode_lines()) {
    read_line(line);
  }
}

const UnicodeTable& UnicodeTable::get() {
  static const UnicodeTable table;
  return table;
}

void UnicodeTable::read_line(std::string_view line) {
  const std::string_view name = next_word(line);
  if (name == "#" || name == "version") {
    return;
  }
  const auto* category = std::ranges::find(category_names, name);
  const auto* flag = std::ranges::find(flag_names, name, [](const auto& entry) { return entry.first; });
  while (!line.empty()) {
    std::string_view word = next_word(line);
    const auto [first, last] = take_range(word);
    if (category != category_names.end()) {
      std::fill(categories_.begin() + first, categories_.begin() + last + 1,
                static_cast<uint8_t>(category - category_names.begin() + 1));
    } else if (flag != flag_names.end()) {
      for (char32_t c = first; c <= last; ++c) {
        flags_[c] |= static_cast<uint16_t>(flag->second);
        flags_[c] |= name == "word" ? static_cast<uint16_t>(CharacterFlag::rust_word) : 0;
      }
    } else if (name == "rust_word_more" || name == "rust_word_less") {
      for (char32_t c = first; c <= last; ++c) {
        flags_[c] ^= static_cast<uint16_t>(CharacterFlag::rust_word);
      }
    } else if (name == "class") {
      word.remove_prefix(1);
      const uint8_t number = static_cast<uint8_t>(take_number(word, 10, '\0'));
      for (char32_t c = first; c <= last; ++c) {
        classes_[c] = number;
      }
    } else if (name == "lower" && word.front() == '/') {
      word.remove_prefix(1);
      const char32_t step = static_cast<char32_t>(take_number(word, 10, '+'));
      const int64_t distance = take_number(word, 10, '\0');
      for (char32_t c = first; c <= last; c += step) {
        lower_[c] = {static_cast<char32_t>(c + distance)};
      }
    } else if (name == "lower") {
      lower_[first] = take_points(word);
    } else if (name == "canonical") {
      const std::u32string parts = take_points(word);
      canonical_[first] = parts;
      if (parts.size() == 2) {
        composed_[pair_key(parts[0], parts[1])] = first;
      }
    } else if (name == "compatible") {
      compatible_[first] = take_points(word);
    } else if (name == "uncomposed") {
      for (char32_t c = first; c <= last; ++c) {
        const auto parts = canonical_.find(c);
        if (parts != canonical_.end() && parts->second.size() == 2) {
          composed_.erase(pair_key(parts->second[0], parts->second[1]));
        }
      }
    } else {
      PARE_UNREACHABLE("unicode.txt has a line of an unknown kind");
    }
  }
  if (name == "lower") {
    for (const auto& [from, to] : lower_) {
      flags_[from] |= static_cast<uint16_t>(CharacterFlag::has_lower);
    }
  }
}

uint32_t UnicodeTable::categories_named(std::string_view name) {
  for (const auto& [words, letters] : long_names) {
    name = name == words ? letters : name;
  }
  uint32_t bits = 0;
  for (size_t n = 0; n < category_names.size(); ++n) {
    if (!name.empty() && name.size() <= 2 && category_names[n].starts_with(name)) {
      bits |= 2U << n;
    }
  }
  return name == "C" ? 0 : bits;  // \p{C} also has what is not assigned
}

void UnicodeTable::append_lower(char32_t point, std::string& text) const {
  if (!is(point, CharacterFlag::has_lower)) {
    append_utf8(text, point);
    return;
  }
  for (const char32_t c : lower_.at(point)) {
    append_utf8(text, c);
  }
}

uint8_t UnicodeTable::combining_class(char32_t point) const {
  if (point < 0x300) {
    return 0;
  }
  const auto found = classes_.find(point);
  return found == classes_.end() ? 0 : found->second;
}

void UnicodeTable::append_decomposed(char32_t point, bool compatible, std::u32string& text) const {
  if (point >= syllables && point < syllables + syllable_count) {
    const char32_t number = point - syllables;
    text.push_back(leads + number / (vowel_count * trail_count));
    text.push_back(vowels + number % (vowel_count * trail_count) / trail_count);
    if (number % trail_count != 0) {
      text.push_back(trails + number % trail_count);
    }
    return;
  }
  auto found = canonical_.find(point);
  bool there = found != canonical_.end();
  if (!there && compatible) {
    found = compatible_.find(point);
    there = found != compatible_.end();
  }
  if (!there) {
    text.push_back(point);
    return;
  }
  for (const char32_t part : found->second) {
    append_decomposed(part, compatible, text);
  }
}

bool is_letter(char32_t point) {
  static const uint32_t letters = UnicodeTable::categories_named("L");
  return (UnicodeTable::get().category_bit(point) & letters) != 0;
}

char32_t UnicodeTable::composed(char32_t first, char32_t second) const {
  if (first >= leads && first < leads + lead_count && second >= vowels && second < vowels + vowel_count) {
    return syllables + ((first - leads) * vowel_count + (second - vowels)) * trail_count;
  }
  if (first >= syllables && first < syllables + syllable_count && (first - syllables) % trail_count == 0 &&
      second > trails && second < trails + trail_count) {
    return first + (second - trails);
  }
  const auto found = composed_.find(pair_key(first, second));
  return found == composed_.end() ? 0 : found->second;
}

}  // namespace pare
