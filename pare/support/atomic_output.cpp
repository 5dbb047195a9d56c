#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/text.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

void sync_path(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number() < 0) {
    fail_io("open", path, errno);
  }
  // Some file systems cannot sync folders and say EINVAL; there is nothing more to do then.
  if (::fsync(file.number()) != 0 && errno != EINVAL) {
    fail_io("sync", path, errno);
  }
}

void sync_tree(const fs::path& path) {
  if (fs::is_directory(path)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      sync_tree(entry.path());
    }
  }
  sync_path(path);
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// "out/" and "out" are the same target; "." and "/" have no name to give.
fs::path normal_target(const fs::path& given) {
  fs::path target = given.lexically_normal();
  if (!target.has_filename()) {
    target = target.parent_path();
  }
  fs::path name = target.filename();
  if (name.empty() || name == "." || name == "..") {
    throw InputError(fmt::format("{} cannot be an output: it has no name of its own", quote(given.string())));
  }
  return target;
}

// Also true for a broken link, which fs::exists does not see.
bool is_taken(const fs::path& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

bool is_folder(const fs::path& path) {
  std::error_code missing;
  return fs::is_directory(path, missing);
}

std::string partial_prefix(const fs::path& target) {
  return fmt::format(".{}.partial-", target.filename().string());
}

// "PID-N" of a process that is not there any more. Not "PID-N-old": that is an output which had to make room.
bool is_stale(std::string_view number) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const size_t dash = number.find('-');
  if (dash == std::string_view::npos || dash + 1 == number.size() ||
      !std::all_of(number.begin() + static_cast<ptrdiff_t>(dash) + 1, number.end(), is_digit)) {
    return false;
  }
  pid_t process = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + dash, process);
  return error == std::errc() && end == number.data() + dash && process > 0 && ::kill(process, 0) != 0 &&
         errno == ESRCH;
}

// What killed processes left of this very target may be as large as the output itself.
void remove_stale(const fs::path& parent, const fs::path& target) {
  const std::string prefix = partial_prefix(target);
  std::error_code ignored;  // it is in nobody's way
  std::vector<fs::path> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && is_stale(std::string_view(name).substr(prefix.size()))) {
      stale.push_back(entry.path());
    }
  }
  for (const fs::path& path : stale) {
    fs::remove_all(path, ignored);
  }
}

}  // namespace

AtomicOutput::AtomicOutput(const fs::path& target, bool replace) : target_(normal_target(target)), replace_(replace) {
  fs::path parent = parent_of(target_);
  if (!is_folder(parent)) {
    throw InputError(
        fmt::format("cannot write {}: there is no folder {}", quote(target_.string()), quote(parent.string())));
  }
  if (!replace && is_taken(target_)) {
    throw InputError(
        fmt::format("{} exists already: choose another output, or replace it with --force", quote(target_.string())));
  }
  remove_stale(parent, target_);
  // A killed process may have left such a name behind, and process numbers come again: take one that is free.
  int attempt = 0;
  do {
    temporary_ = parent / fmt::format("{}{}-{}", partial_prefix(target_), ::getpid(), attempt++);
  } while (is_taken(temporary_));
}

AtomicOutput::~AtomicOutput() {
  std::error_code ignored;  // nothing better to do while unwinding
  fs::remove_all(temporary_, ignored);
}

void AtomicOutput::commit() {
  sync_tree(temporary_);
  unsigned how = replace_ && is_taken(target_) ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), how) != 0) {
    // Network file systems know neither way of renaming.
    if (errno != EINVAL && errno != ENOSYS) {
      fail_io("rename the finished output to", target_, errno);
    }
    commit_without_exchange();
  }
  sync_path(parent_of(target_));
}

void AtomicOutput::commit_without_exchange() {
  fs::path old = temporary_;
  old += "-old";
  bool stood_there = is_taken(target_);
  if (stood_there && !replace_) {
    fail_io("rename the finished output to", target_, EEXIST);
  }
  if (stood_there && ::rename(target_.c_str(), old.c_str()) != 0) {
    fail_io("replace", target_, errno);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    int cause = errno;
    ::rename(old.c_str(), target_.c_str());
    fail_io("rename the finished output to", target_, cause);
  }
  std::error_code ignored;  // the new output is in place; a leftover harms nobody
  fs::remove_all(old, ignored);
}

AtomicFile::AtomicFile(const fs::path& target, bool replace) : AtomicOutput(target, replace) {
  if (is_folder(target)) {
    throw InputError(fmt::format("{} is a folder, expected a file to replace", quote(target.string())));
  }
}

AtomicFolder::AtomicFolder(const fs::path& target, bool replace) : AtomicOutput(target, replace) {
  if (is_taken(target) && !is_folder(target)) {
    throw InputError(fmt::format("{} is a file, expected a folder to replace", quote(target.string())));
  }
  if (::mkdir(temporary().c_str(), 0777) != 0) {
    fail_io("create", temporary(), errno);
  }
}

}  // namespace pare
