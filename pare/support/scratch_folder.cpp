#include "pare/support/scratch_folder.h"

#include <cerrno>
#include <cstdlib>

#include "pare/support/files.h"

namespace pare {

ScratchFolder::ScratchFolder(const std::string& name) {
  std::string pattern = (std::filesystem::temp_directory_path() / ("pare-" + name + "-XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    fail_io("create", pattern, errno);
  }
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace pare
