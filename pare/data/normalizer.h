#pragma once
// What is done to a text before it is split: the normalizers of a tokenizer.json, in their order.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pare/data/pattern.h"
#include "pare/data/unicode.h"

namespace pare {

struct LowercaseText {};
struct WithoutAccents {};
struct TrimText {
  bool left = true, right = true;
};
struct PrependText {
  std::string text;
};
struct ReplaceString {
  std::string from, to;
};
struct ReplaceMatches {
  Pattern pattern;
  std::string to;
};
struct BertText {
  bool clean = true, chinese = true, accents = true, lowercase = true;
};

using NormalStep = std::variant<NormalForm, LowercaseText, WithoutAccents, TrimText, PrependText, ReplaceString,
                                ReplaceMatches, BertText>;

// Where a part of a text stands. What is put before a text is not put before its later parts.
enum class TextPart { begins, continues };

class Normalizer {
 public:
  // `subject`: the file that it was read from, for messages.
  explicit Normalizer(std::vector<NormalStep> steps, std::string subject = "")
      : steps_(std::move(steps)), subject_(std::move(subject)) {}
  bool changes_nothing() const { return steps_.empty(); }
  // InputError where it makes so much of so little text that it can only be meant to fill the memory.
  std::string apply(std::string_view text, TextPart part);
  // Whether parts of a text may be normalized one by one, cut before a space between letters, or after the end of a
  // line.
  bool works_in_parts() const;

 private:
  std::vector<NormalStep> steps_;
  std::string subject_;
};

}  // namespace pare
