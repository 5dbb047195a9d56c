#pragma once
// A folder of one's own among the system's temporary ones; gone with this object.

#include <filesystem>
#include <string>

namespace pare {

class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name);  // of the program's part that works there
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace pare
