#pragma once
// How a text falls into words, which a model then breaks up one by one: the pre_tokenizer of a tokenizer.json.

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pare/data/normalizer.h"
#include "pare/data/pattern.h"

namespace pare {

// What becomes of the text that a rule matches, beside the text between.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct SplitByPattern {
  std::optional<Pattern> pattern;  // else by `text`
  std::string text;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
};
// A rule that asks each character by itself.
struct SplitByFlag {
  CharacterFlag flag;
  SplitBehavior behavior = SplitBehavior::isolated;
};
// Bytes are the alphabet of the model. Comes last, since afterwards there is no text.
struct SplitToBytes {
  bool prefix_space = false;
  std::optional<Pattern> pattern;
};
struct SplitBySpace {  // Metaspace
  enum class Prepend { always, first, never };
  std::string replacement;
  Prepend prepend = Prepend::always;
  bool split = true;
};
struct SplitForBert {};
struct SplitToWords {};  // Whitespace: runs of letters and digits, and runs of everything else but white space

using SplitStep = std::variant<SplitByPattern, SplitByFlag, SplitToBytes, SplitBySpace, SplitForBert, SplitToWords>;

// Where a section of a text stands: later sections follow an added token.
struct SectionPlace {
  bool begins_text = true;
  TextPart part = TextPart::begins;
};

class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<SplitStep> steps) : steps_(std::move(steps)) {}
  // The words of a section, none of them empty. Valid until the next call, and as long as `text` is.
  const std::vector<std::string_view>& split(std::string_view text, SectionPlace place);
  bool to_bytes() const { return !steps_.empty() && std::holds_alternative<SplitToBytes>(steps_.back()); }
  // The whole text is one word.
  bool splits_nothing() const;
  // And is the text as it was, or its bytes.
  bool changes_nothing() const;

 private:
  std::vector<SplitStep> steps_;
  std::vector<std::string_view> words_, before_;
  std::deque<std::string> changed_;  // texts that a rule rewrote
};

}  // namespace pare
