#include "pare/data/pre_tokenizer.h"

#include <algorithm>

#include "pare/data/utf8.h"

namespace pare {

namespace {

using Words = std::vector<std::string_view>;

struct Stretch {
  size_t begin, end;
  bool matched;
};

// Matches and what lies between them, front to back.
void add_stretches(std::string_view text, const std::vector<ByteSpan>& matches, bool invert,
                   std::vector<Stretch>& stretches) {
  size_t at = 0;
  for (const ByteSpan& match : matches) {
    if (match.begin > at) {
      stretches.push_back({at, match.begin, invert});
    }
    stretches.push_back({match.begin, match.end, !invert});
    at = match.end;
  }
  if (at < text.size()) {
    stretches.push_back({at, text.size(), invert});
  }
}

// Each match joins its neighbour, where that is no match that stands alone already.
std::vector<Stretch> merged(const std::vector<Stretch>& stretches, bool with_previous) {
  std::vector<Stretch> result;
  bool last_matched = false;
  const auto add = [&](const Stretch& s) {
    if (s.matched && !last_matched && !result.empty()) {
      (with_previous ? result.back().end : result.back().begin) = with_previous ? s.end : s.begin;
    } else {
      result.push_back(s);
    }
    last_matched = s.matched;
  };
  if (with_previous) {
    std::for_each(stretches.begin(), stretches.end(), add);
  } else {
    std::for_each(stretches.rbegin(), stretches.rend(), add);
    std::ranges::reverse(result);
  }
  return result;
}

std::vector<Stretch> joined(const std::vector<Stretch>& stretches) {
  std::vector<Stretch> result;
  for (const Stretch& s : stretches) {
    if (!result.empty() && result.back().matched == s.matched) {
      result.back().end = s.end;
    } else {
      result.push_back(s);
    }
  }
  return result;
}

void add_words(std::string_view text, std::vector<Stretch> stretches, SplitBehavior behavior, Words& words) {
  if (behavior == SplitBehavior::contiguous) {
    stretches = joined(stretches);
  } else if (behavior == SplitBehavior::merged_with_previous || behavior == SplitBehavior::merged_with_next) {
    stretches = merged(stretches, behavior == SplitBehavior::merged_with_previous);
  }
  for (const Stretch& s : stretches) {
    if (behavior != SplitBehavior::removed || !s.matched) {
      words.push_back(text.substr(s.begin, s.end - s.begin));
    }
  }
}

void find_text(std::string_view text, const std::string& wanted, std::vector<ByteSpan>& matches) {
  for (size_t at = text.find(wanted); at != std::string_view::npos; at = text.find(wanted, at + wanted.size())) {
    matches.push_back({at, at + wanted.size()});
  }
}

void split_by(std::string_view text, const std::vector<ByteSpan>& matches, SplitBehavior behavior, bool invert,
              Words& words) {
  std::vector<Stretch> stretches;
  stretches.reserve(2 * matches.size() + 1);
  add_stretches(text, matches, invert, stretches);
  add_words(text, std::move(stretches), behavior, words);
}

// Matches and gaps alike are words: the usual case, without detours.
void isolate(std::string_view text, const std::vector<ByteSpan>& matches, Words& words) {
  size_t at = 0;
  for (const ByteSpan& match : matches) {
    if (match.begin > at) {
      words.push_back(text.substr(at, match.begin - at));
    }
    words.push_back(text.substr(match.begin, match.end - match.begin));
    at = match.end;
  }
  if (at < text.size()) {
    words.push_back(text.substr(at));
  }
}

bool ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

void split_for_bert(std::string_view text, Words& words) {
  const UnicodeTable& table = UnicodeTable::get();
  size_t begin = 0;
  const auto end_word = [&](size_t at) {
    if (at > begin) {
      words.push_back(text.substr(begin, at - begin));
    }
  };
  for (size_t at = 0; at < text.size();) {
    const unsigned char byte = static_cast<unsigned char>(text[at]);
    const Utf8Character c = byte < 0x80 ? Utf8Character{byte, 1} : character_at(text, at);
    const bool punctuation = byte < 0x80 ? ascii_punctuation(byte) : table.is(c.point, CharacterFlag::bert_punctuation);
    const bool white = byte < 0x80 ? byte == ' ' || (byte >= 9 && byte <= 13) : table.is(c.point, CharacterFlag::white);
    if (punctuation || white) {
      end_word(at);
      if (punctuation) {
        words.push_back(text.substr(at, c.bytes));
      }
      begin = at + c.bytes;
    }
    at += c.bytes;
  }
  end_word(text.size());
}

void split_to_words(std::string_view text, Words& words) {
  enum class Kind { white, word, other };
  const UnicodeTable& table = UnicodeTable::get();
  size_t begin = 0;
  Kind run = Kind::white;
  const auto end_run = [&](size_t at) {
    if (run != Kind::white && at > begin) {
      words.push_back(text.substr(begin, at - begin));
    }
    begin = at;
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    const Kind kind = table.is(c.point, CharacterFlag::rust_word) ? Kind::word
                      : table.is(c.point, CharacterFlag::white)   ? Kind::white
                                                                  : Kind::other;
    if (kind != run) {
      end_run(at);
      run = kind;
    }
    at += c.bytes;
  }
  end_run(text.size());
}

struct Split {
  std::string_view text;
  SectionPlace place;
  bool first;  // of the section's words
  std::deque<std::string>& changed;
  Words& words;

  void operator()(SplitByPattern& step) const {
    std::vector<ByteSpan> matches;
    step.pattern ? step.pattern->find_all(text, matches) : find_text(text, step.text, matches);
    if (step.behavior == SplitBehavior::isolated) {
      return isolate(text, matches, words);
    }
    split_by(text, matches, step.behavior, step.invert, words);
  }

  void operator()(const SplitByFlag& step) const {
    const UnicodeTable& table = UnicodeTable::get();
    std::vector<ByteSpan> matches;
    for (size_t at = 0; at < text.size();) {
      const Utf8Character c = character_at(text, at);
      if (table.is(c.point, step.flag)) {
        matches.push_back({at, at + c.bytes});
      }
      at += c.bytes;
    }
    split_by(text, matches, step.behavior, false, words);
  }

  void operator()(SplitToBytes& step) const {
    std::string_view bytes = text;
    if (step.prefix_space && !text.starts_with(' ') && (!first || place.part == TextPart::begins)) {
      bytes = changed.emplace_back(" ").append(text);
    }
    if (!step.pattern) {
      words.push_back(bytes);
      return;
    }
    std::vector<ByteSpan> matches;
    step.pattern->find_all(bytes, matches);
    isolate(bytes, matches, words);
  }

  void operator()(const SplitBySpace& step) const {
    std::string& result = changed.emplace_back();
    size_t at = 0;
    for (size_t found = text.find(' '); found != std::string_view::npos; found = text.find(' ', at)) {
      result.append(text, at, found - at).append(step.replacement);
      at = found + 1;
    }
    result.append(text, at);
    const bool begins = first && place.begins_text && place.part == TextPart::begins;
    const bool wanted = step.prepend == SplitBySpace::Prepend::always
                            ? !first || place.part == TextPart::begins
                            : step.prepend == SplitBySpace::Prepend::first && begins;
    if (wanted && !result.starts_with(step.replacement)) {
      result.insert(0, step.replacement);
    }
    if (!step.split) {
      words.push_back(result);
      return;
    }
    std::vector<ByteSpan> matches;
    find_text(result, step.replacement, matches);
    split_by(result, matches, SplitBehavior::merged_with_next, false, words);
  }

  void operator()(const SplitForBert&) const { split_for_bert(text, words); }
  void operator()(const SplitToWords&) const { split_to_words(text, words); }
};

}  // namespace

const std::vector<std::string_view>& PreTokenizer::split(std::string_view text, SectionPlace place) {
  changed_.clear();
  words_.clear();
  if (!text.empty()) {
    words_.push_back(text);
  }
  for (SplitStep& step : steps_) {
    std::swap(words_, before_);
    words_.clear();
    for (size_t n = 0; n < before_.size(); ++n) {
      std::visit(Split{before_[n], place, n == 0, changed_, words_}, step);
    }
  }
  return words_;
}

bool PreTokenizer::splits_nothing() const {
  return std::ranges::all_of(steps_, [](const SplitStep& step) {
    const auto* space = std::get_if<SplitBySpace>(&step);
    const auto* bytes = std::get_if<SplitToBytes>(&step);
    return (space != nullptr && !space->split) || (bytes != nullptr && !bytes->pattern);
  });
}

bool PreTokenizer::changes_nothing() const {
  return std::ranges::all_of(steps_, [](const SplitStep& step) {
    const auto* bytes = std::get_if<SplitToBytes>(&step);
    return bytes != nullptr && !bytes->pattern && !bytes->prefix_space;
  });
}

}  // namespace pare
