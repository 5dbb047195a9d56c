#include "pare/support/lfs_pointer.h"

#include <fmt/format.h>

#include "pare/support/error.h"

namespace pare {

void refuse_lfs_pointer(std::string_view begin, const std::string& subject) {
  if (begin.starts_with("version https://git-lfs")) {
    throw InputError(
        fmt::format("{} is a Git LFS pointer and not the file itself: run 'git lfs install' and then 'git lfs pull' in "
                    "the repository that it was cloned from",
                    subject));
  }
}

}  // namespace pare
