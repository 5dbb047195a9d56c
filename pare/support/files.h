#pragma once
// Files that are read with suspicion, and outputs that appear whole or not at all.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

// A path as messages name it: what is still being built under a temporary name has the name that it will get.
std::string shown(const std::filesystem::path& path);

// Throws IoError "cannot VERB 'PATH': CAUSE", with the cause and a hint from `error_number` (an errno).
[[noreturn]] void fail_io(std::string_view verb, const std::filesystem::path& path, int error_number);

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

// What the system says of a file that changes with its bytes.
struct FileState {
  uint64_t size = 0;
  int64_t modified = 0, changed = 0;  // nanoseconds; a program can set the first back, but not the second
  bool operator==(const FileState&) const = default;
};

// A regular file, opened for reading at any place. InputError when it is missing or something else. It stays this file
// where another takes its name.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return opened_.size; }  // when it was opened
  // Fills `into` from byte `offset` on. Less than asked for means that the file ends there, whatever its size was.
  size_t read_at(uint64_t offset, std::span<std::byte> into) const;
  // InputError where somebody wrote to it since it was opened: what was read before and after may not fit together. One
  // that lost its name counts too, which the system does not tell from a write whose time was set back. A write within
  // the same tick of the system's clock as the one before opening goes unseen.
  void check_unchanged() const;

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  FileState opened_;
};

// A new file, written front to back.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  void write(std::span<const std::byte> bytes);
  void sync();

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
};

// InputError when it has more than `max_bytes`, before anything is allocated.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes);
// A new file with this text, synced; for files inside an AtomicFolder.
void write_text_file(const std::filesystem::path& path, std::string_view text);

enum class Locked { yes, by_another };
// Tries to lock what is opened as `number`, until that is closed. IoError where it cannot be told, as on a file system
// without locks: `path` is named.
Locked try_lock(int number, const std::filesystem::path& path);

// A descriptor of the folder that holds it against other processes until it is closed: no file is left behind that
// means nothing once its process is gone. InputError where another holds it.
int lock_folder(const std::filesystem::path& folder);

// Whether something is there, and whether that is a folder; not where nobody may look.
bool path_exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

// What is in a folder, sorted by name. IoError when it cannot be listed.
std::vector<std::filesystem::directory_entry> entries_of(const std::filesystem::path& folder);

enum class OutputKind { file, folder };

// Throws where what stands at `target` is not to be replaced. Without one, nothing is ever replaced.
using ReplaceCheck = std::function<void(const std::filesystem::path& target)>;

// Where an output given as such is written: "out/" is "out". InputError where it has no name of its own.
std::filesystem::path output_target(const std::filesystem::path& given);

// InputError where there is no folder to write it in, and where something stands there that is of another kind, is a
// link, or is not to be replaced.
void check_target(const std::filesystem::path& given, OutputKind kind, const ReplaceCheck& replace);

// A file or folder that is built under a temporary name beside its target and takes the target's name on commit.
// Without commit the destructor removes it, also when an interrupt or an error unwinds the stack.
class AtomicOutput {
 public:
  AtomicOutput(const AtomicOutput&) = delete;
  AtomicOutput& operator=(const AtomicOutput&) = delete;
  ~AtomicOutput();

  // Where to write until commit: a folder that exists already, or a file that the caller creates.
  const std::filesystem::path& temporary() const { return temporary_; }
  // Syncs everything to disk, then renames. What stood there before goes only once the new one is in its place, and is
  // put back if it may not go. Hands back warnings: that not all of it could be removed.
  std::vector<std::string> commit();

 protected:
  AtomicOutput(const std::filesystem::path& target, OutputKind kind, ReplaceCheck replace);
  void lock();  // once the temporary exists: tells other processes that somebody still writes

 private:
  void commit_without_exchange();
  std::vector<std::string> remove_replaced();
  std::filesystem::path target_, temporary_;
  std::optional<Descriptor> lock_;
  OutputKind kind_;
  ReplaceCheck replace_;
};

// Both begin with check_target.
struct AtomicFile : AtomicOutput {
  explicit AtomicFile(const std::filesystem::path& target, ReplaceCheck replace = nullptr);
};

struct AtomicFolder : AtomicOutput {
  explicit AtomicFolder(const std::filesystem::path& target, ReplaceCheck replace = nullptr);
};

// A repository cloned without Git LFS has a few lines of text in the place of each large file.
constexpr size_t lfs_pointer_prefix = 40;  // as many bytes of a file as tell

// InputError when a file begins as a pointer does. `subject` is its path.
void refuse_lfs_pointer(std::string_view begin, const std::string& subject);

// A folder of one's own among the system's temporary ones; gone with this object.
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
