#pragma once
// Commands as a shell reads them, for people to copy.

#include <string>
#include <string_view>

namespace pare {

std::string shell_word(std::string_view text);  // as it is, or quoted, so that a shell takes it for one word

}  // namespace pare
