#pragma once
// Names that people type and files contain: misspelt, untrusted, or matched by a pattern.

#include <string>
#include <string_view>
#include <vector>

namespace pare {

// The candidate that `word` is probably a misspelling of; empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
// "; did you mean WORD?" of the nearest, or nothing; or another text around it, with {} for the word.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates,
                         std::string_view text = "; did you mean {}?");

// For messages, where names from files are untrusted: control characters and broken UTF-8 escaped, cut when very long.
std::string escaped(std::string_view text);
std::string quote(std::string_view text);  // the same, in 'quotes'

// Shell patterns over whole names: * any run, ? one character, [a-z] and [!a-z] sets, \ quotes the next.
bool glob_match(std::string_view pattern, std::string_view name);

// The length of the well-formed UTF-8 character at the front, 0 when it is broken.
size_t utf8_length(std::string_view text);

// For people to copy: as it is, or quoted, so that a shell takes it for one word.
std::string shell_word(std::string_view text);

}  // namespace pare
