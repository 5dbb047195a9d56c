#pragma once
// Files that are read with suspicion, and outputs that appear whole or not at all.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace pare {

// InputError when it is missing, no regular file, or larger than `max_bytes`; IoError when the system refuses.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes);

// Throws IoError "cannot VERB 'PATH': CAUSE", with the cause and a hint from `error_number` (an errno).
[[noreturn]] void fail_io(std::string_view verb, const std::filesystem::path& path, int error_number);

// A file or folder that is built under a temporary name beside its target and takes the target's name on commit.
// Without commit the destructor removes it, also when an interrupt or an error unwinds the stack.
class AtomicOutput {
 public:
  AtomicOutput(AtomicOutput&&) = delete;
  ~AtomicOutput();

  // Where to write until commit: a folder that exists already, or a file that the caller creates.
  const std::filesystem::path& temporary() const { return temporary_; }
  // Syncs everything to disk, then renames. What stood there before goes only once the new one is complete.
  void commit();

 protected:
  AtomicOutput(const std::filesystem::path& target, bool replace);

 private:
  void commit_without_exchange();
  std::filesystem::path target_, temporary_;
  bool replace_;
};

// Both refuse an existing target with InputError unless `replace`.
struct AtomicFile : AtomicOutput {
  AtomicFile(const std::filesystem::path& target, bool replace) : AtomicOutput(target, replace) {}
};

struct AtomicFolder : AtomicOutput {
  AtomicFolder(const std::filesystem::path& target, bool replace);
};

// Writes the whole text under a new name and syncs it; for files inside an AtomicFolder.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace pare
