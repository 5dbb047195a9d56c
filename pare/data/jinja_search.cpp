// Where a text lies in another, in time that its length bounds, whatever the template looks for.

#include <iterator>

#include "pare/data/jinja_value.h"

namespace pare::jinja {

namespace {

constexpr size_t few_bytes = 16;  // so short, the plain search cannot take long either

// By Knuth, Morris and Pratt: no byte of the text is looked at again for what was found before it.
template <class Place>
size_t first_place(Place text, size_t size, Place wanted, size_t length) {
  std::vector<size_t> shorter(length, 0);  // of what matches so far, the longest end that is a beginning too
  size_t matched = 0;
  const auto follow = [&](char c) {
    while (matched > 0 && wanted[static_cast<std::ptrdiff_t>(matched)] != c) {
      matched = shorter[matched - 1];
    }
    matched += wanted[static_cast<std::ptrdiff_t>(matched)] == c ? 1 : 0;
  };
  for (size_t n = 1; n < length; ++n) {
    follow(wanted[static_cast<std::ptrdiff_t>(n)]);
    shorter[n] = matched;
  }
  matched = 0;
  for (size_t n = 0; n < size; ++n) {
    follow(text[static_cast<std::ptrdiff_t>(n)]);
    if (matched == length) {
      return n + 1 - length;
    }
  }
  return std::string_view::npos;
}

}  // namespace

size_t find_text(std::string_view text, std::string_view wanted, size_t from, StepBudget& budget) {
  text.remove_prefix(std::min(from, text.size()));
  const size_t found = wanted.size() <= few_bytes
                           ? text.find(wanted)
                           : first_place(text.begin(), text.size(), wanted.begin(), wanted.size());
  budget.pay_bytes(std::min(found, text.size()) + wanted.size());
  return found == text.npos ? found : from + found;
}

size_t find_last_text(std::string_view text, std::string_view wanted, StepBudget& budget) {
  size_t found = text.npos;
  if (wanted.size() <= few_bytes) {
    found = text.rfind(wanted);
  } else {
    const size_t behind = first_place(text.rbegin(), text.size(), wanted.rbegin(), wanted.size());
    found = behind == text.npos ? behind : text.size() - behind - wanted.size();
  }
  budget.pay_bytes((found == text.npos ? text.size() : text.size() - found) + wanted.size());
  return found;
}

}  // namespace pare::jinja
