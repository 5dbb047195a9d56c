#include "pare/data/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "pare/data/unicode.h"
#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr size_t first_symbol = 128;  // below: ASCII itself

// Which atoms hold for a character, one bit each.
using Signature = uint64_t;
constexpr size_t most_atoms = 64;

struct Alphabet {
  std::vector<unsigned char> symbols;  // of each character from 128 on
  std::vector<Signature> signatures;   // of each symbol
};

Signature signature_of(const std::vector<CharacterAtom>& atoms, char32_t point) {
  Signature signature = 0;
  for (size_t n = 0; n < atoms.size(); ++n) {
    signature |= static_cast<Signature>(atoms[n].holds(point)) << n;
  }
  return signature;
}

Alphabet make_alphabet(const std::vector<CharacterAtom>& atoms, std::string_view expression,
                       const std::string& subject) {
  const auto refuse = [&] {
    throw InputError(fmt::format("{}: the pattern {} tells more classes of characters apart than are supported",
                                 subject, quote(expression)));
  };
  if (atoms.size() > most_atoms) {
    refuse();
  }
  std::vector<std::pair<char32_t, char32_t>> named_ranges;
  for (const CharacterAtom& atom : atoms) {
    std::ranges::copy_if(atom.ranges, std::back_inserter(named_ranges),
                         [](const auto& range) { return range.second >= first_symbol; });
  }
  Alphabet result;
  for (char32_t c = 0; c < first_symbol; ++c) {
    result.signatures.push_back(signature_of(atoms, c));
  }
  result.symbols.resize(highest_character + 1 - first_symbol);
  std::map<Signature, unsigned char> known;
  const auto symbol_of = [&](char32_t c) {
    const Signature signature = signature_of(atoms, c);
    const auto found = known.find(signature);
    if (found != known.end()) {
      return found->second;
    }
    if (result.signatures.size() == 256) {
      refuse();
    }
    known[signature] = static_cast<unsigned char>(result.signatures.size());
    result.signatures.push_back(signature);
    return known[signature];
  };
  // Outside of ranges that the pattern names, a character is what its kind is.
  const UnicodeTable& table = UnicodeTable::get();
  std::array<unsigned char, 256> of_kind = {};
  for (char32_t c = first_symbol; c <= highest_character; ++c) {
    const bool named =
        std::ranges::any_of(named_ranges, [c](const auto& range) { return c >= range.first && c <= range.second; });
    unsigned char& shared = of_kind[table.kind(c)];
    if (!named && shared == 0) {
      shared = symbol_of(c);
    }
    result.symbols[c - first_symbol] = named ? symbol_of(c) : shared;
  }
  return result;
}

bool contains(const CharacterSet& set, Signature signature) {
  const bool any = std::ranges::any_of(set.items, [&](const CharacterSet::Item& item) {
    return (signature >> item.atom & 1) != (item.negated ? 1U : 0U);
  });
  return any != set.negated;
}

// "[\x41-\x5a]", or what never matches.
std::string bracket_of(const CharacterSet& set, const std::vector<Signature>& signatures) {
  std::string text;
  for (size_t first = 0; first < signatures.size(); ++first) {
    if (!contains(set, signatures[first])) {
      continue;
    }
    size_t last = first;
    while (last + 1 < signatures.size() && contains(set, signatures[last + 1])) {
      ++last;
    }
    text += fmt::format("\\x{:02x}-\\x{:02x}", first, last);
    first = last;
  }
  return text.empty() ? "(?!)" : "[" + text + "]";
}

std::string expression_of(const ParsedPattern& parsed, const std::vector<Signature>& signatures) {
  std::string text;
  for (const ParsedPattern::Part& part : parsed.parts) {
    text += part.text.empty() ? bracket_of(part.set, signatures) : part.text;
  }
  return text;
}

ByteMatcher make_matcher(std::string_view expression, const std::string& subject, std::vector<unsigned char>& symbols) {
  const ParsedPattern parsed = parse_pattern(expression, subject);
  Alphabet alphabet = make_alphabet(parsed.atoms, expression, subject);
  symbols = std::move(alphabet.symbols);
  return {expression_of(parsed, alphabet.signatures), fmt::format("{}: the pattern {}", subject, quote(expression))};
}

}  // namespace

bool CharacterAtom::holds(char32_t point) const {
  const UnicodeTable& table = UnicodeTable::get();
  if ((table.category_bit(point) & categories) != 0 || table.is(point, static_cast<CharacterFlag>(flags))) {
    return true;
  }
  return std::ranges::any_of(ranges, [point](const std::pair<char32_t, char32_t>& range) {
    return point >= range.first && point <= range.second;
  });
}

Pattern::Pattern(std::string_view expression, const std::string& subject)
    : matcher_(make_matcher(expression, subject, symbols_)) {
  ByteSpan found;
  for (const std::string_view sample : {"", "a", " "}) {
    if (matcher_.find(sample, 0, found) && found.begin == found.end) {
      throw InputError(fmt::format("{}: the pattern {} also matches nothing at all, which is not supported", subject,
                                   quote(expression)));
    }
  }
}

void Pattern::find_all(std::string_view text, std::vector<ByteSpan>& matches) {
  const bool plain = is_ascii(text);
  std::string_view subject = text;
  if (!plain) {
    subject_.clear();
    for (size_t at = 0; at < text.size();) {
      const Utf8Character c = character_at(text, at);
      subject_.push_back(static_cast<char>(c.point < first_symbol ? c.point : symbols_[c.point - first_symbol]));
      at += c.bytes;
    }
    subject = subject_;
  }
  size_t symbol = 0, byte = 0;  // the same place in both
  const auto byte_of = [&](size_t place) {
    if (plain) {
      return place;
    }
    for (; symbol < place; ++symbol) {
      byte += character_at(text, byte).bytes;
    }
    return byte;
  };
  ByteSpan found;
  for (size_t from = 0; from < subject.size() && matcher_.find(subject, from, found);) {
    if (found.begin == found.end) {
      from = found.end + 1;
      continue;
    }
    const size_t begin = byte_of(found.begin);
    matches.push_back({begin, byte_of(found.end)});
    from = found.end;
  }
}

}  // namespace pare
