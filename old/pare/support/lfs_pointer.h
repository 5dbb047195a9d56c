#pragma once
// A repository cloned without Git LFS has a few lines of text in the place of each large file.

#include <string>
#include <string_view>

namespace pare {

constexpr size_t lfs_pointer_prefix = 40;  // as many bytes of a file as tell

// InputError when a file begins as a pointer does. `subject` is its path.
void refuse_lfs_pointer(std::string_view begin, const std::string& subject);

}  // namespace pare
