#pragma once
// Regular expressions over bytes: PCRE2 where the build found it (matcher_pcre2.cpp), else a refusal
// (matcher_absent.cpp). Characters and their classes are made into bytes before, in pattern.cpp.

#include <memory>
#include <string>
#include <string_view>

namespace pare {

struct ByteSpan {
  size_t begin = 0, end = 0;
  bool operator==(const ByteSpan&) const = default;
};

class ByteMatcher {
 public:
  // `expression` in the syntax of PCRE2, each byte a character; `subject` is what messages call it.
  ByteMatcher(const std::string& expression, const std::string& subject);
  // The first match from `from` on. False where there is none.
  bool find(std::string_view text, size_t from, ByteSpan& found) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace pare
