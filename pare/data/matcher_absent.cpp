#include <fmt/format.h>

#include "pare/data/matcher.h"
#include "pare/support/error.h"

namespace pare {

struct ByteMatcher::Compiled {};

ByteMatcher::ByteMatcher(const std::string&, const std::string& subject) {
  throw InputError(
      fmt::format("{} splits text, and this pare was built without PCRE2: install libpcre2-dev and build it again, or "
                  "give token ids instead of text",
                  subject));
}

bool ByteMatcher::find(std::string_view, size_t, ByteSpan&) const {
  PARE_UNREACHABLE("a pattern that was never made");
}

}  // namespace pare
