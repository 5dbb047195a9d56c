#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"

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
  if (is_folder(path)) {
    for (const fs::directory_entry& entry : entries_of(path)) {
      sync_tree(entry.path());
    }
  }
  sync_path(path);
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Also true for a broken link, which fs::exists does not see.
bool is_taken(const fs::path& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

constexpr std::string_view partial_mark = ".partial-";

std::string partial_prefix(const fs::path& target) {
  return fmt::format(".{}{}", target.filename().string(), partial_mark);
}

// The process that "PID-N" names, or 0. Not of "PID-N-old": that is an output which had to make room.
pid_t process_of(std::string_view number) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const size_t dash = number.find('-');
  if (dash == std::string_view::npos || dash + 1 == number.size() ||
      !std::all_of(number.begin() + static_cast<ptrdiff_t>(dash) + 1, number.end(), is_digit)) {
    return 0;
  }
  pid_t process = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + dash, process);
  return error == std::errc() && end == number.data() + dash && process > 0 ? process : 0;
}

// Process numbers mean nothing in another container that writes to the same disk: whoever still writes holds a lock.
bool is_stale(const fs::path& path, std::string_view number) {
  const pid_t process = process_of(number);
  if (process == 0 || ::kill(process, 0) == 0 || errno != ESRCH) {
    return false;
  }
  const Descriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  try {
    return opened.number() >= 0 && try_lock(opened.number(), path) == Locked::yes;
  } catch (const IoError&) {
    return false;  // nobody can tell, so it stays
  }
}

// The name that a temporary of this process will get, or the name as it is.
std::string final_name(const std::string& name) {
  const size_t mark = name.rfind(partial_mark);
  const bool ours = name.starts_with(".") && mark != std::string::npos &&
                    process_of(std::string_view(name).substr(mark + partial_mark.size())) == ::getpid();
  return ours ? name.substr(1, mark - 1) : name;
}

// What killed processes left of this very target may be as large as the output itself.
void remove_stale(const fs::path& parent, const fs::path& target) {
  const std::string prefix = partial_prefix(target);
  std::error_code ignored;  // it is in nobody's way
  std::vector<fs::path> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && is_stale(entry.path(), std::string_view(name).substr(prefix.size()))) {
      stale.push_back(entry.path());
    }
  }
  for (const fs::path& path : stale) {
    fs::remove_all(path, ignored);
  }
}

// Whether what stands there may make room.
void check_replaced(const fs::path& target, OutputKind kind, const ReplaceCheck& replace) {
  const std::string subject = quote(shown(target));
  std::error_code unknown;
  const bool link = fs::is_symlink(target, unknown);
  if (!link && is_folder(target) != (kind == OutputKind::folder)) {
    throw InputError(
        kind == OutputKind::folder
            ? fmt::format("{} is a file, expected the name of a folder: choose another output", subject)
            : fmt::format("{} is a folder, expected a file: name one in it, such as {}/NAME", subject, shown(target)));
  }
  refuse_if(!replace, "{} exists already: choose another output, or replace it with --force", subject);
  refuse_if(link, "{} is a link, which is not replaced: name what it points to, or remove it", subject);
  replace(target);
}

}  // namespace

std::string shown(const fs::path& path) {
  if (path.native().find(partial_mark) == std::string::npos) {
    return path.string();
  }
  fs::path named;
  for (const fs::path& part : path) {
    named /= final_name(part.string());
  }
  return named.string();
}

fs::path output_target(const fs::path& given) {
  refuse_if(given == "-", "'-' is no output: results are files and never go to stdout; give a name (./- is one)");
  // The text stays what it is: 'link/../out' is for the system to resolve, and not what its words suggest.
  fs::path target = given;
  while (!target.has_filename() && target.has_relative_path()) {
    target = target.parent_path();
  }
  const fs::path name = target.filename();
  refuse_if(name.empty() || name == "." || name == "..", "{} cannot be an output: it has no name of its own",
            quote(given.string()));
  return target;
}

void check_target(const fs::path& given, OutputKind kind, const ReplaceCheck& replace) {
  const fs::path target = output_target(given);
  if (const fs::path parent = parent_of(target); !is_folder(parent)) {
    throw InputError(
        fmt::format("cannot write {}: there is no folder {}", quote(target.string()), quote(parent.string())));
  }
  if (is_taken(target)) {
    check_replaced(target, kind, replace);
  }
}

AtomicOutput::AtomicOutput(const fs::path& target, OutputKind kind, ReplaceCheck replace)
    : target_(output_target(target)), kind_(kind), replace_(std::move(replace)) {
  check_target(target, kind, replace_);
  remove_stale(parent_of(target_), target_);
  // A killed process may have left such a name behind, and process numbers come again: take one that is free.
  int attempt = 0;
  do {
    temporary_ =
        fs::path(target_).replace_filename(fmt::format("{}{}-{}", partial_prefix(target_), ::getpid(), attempt++));
  } while (is_taken(temporary_));
}

AtomicOutput::~AtomicOutput() {
  std::error_code ignored;  // nothing better to do while unwinding
  fs::remove_all(temporary_, ignored);
}

std::vector<std::string> AtomicOutput::commit() {
  sync_tree(temporary_);
  std::vector<std::string> warnings;
  struct stat before = {};
  const bool replaces = replace_ && ::lstat(target_.c_str(), &before) == 0;
  if (replaces) {  // before anything moves: who works in it finds it by its name
    check_replaced(target_, kind_, replace_);
  }
  if (replaces && S_ISDIR(before.st_mode)) {
    ::chmod(temporary_.c_str(), before.st_mode & 07777);  // what was private stays so
  }
  const unsigned how = replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), how) == 0) {
    if (replaces) {
      warnings = remove_replaced();
    }
  } else if (errno == EEXIST && replace_) {  // it appeared just now
    check_replaced(target_, kind_, replace_);
    fail_io("rename the finished output to", target_, EEXIST);
  } else if (errno == EINVAL || errno == ENOSYS) {  // network file systems know neither way of renaming
    commit_without_exchange();
  } else {
    fail_io("rename the finished output to", target_, errno);
  }
  sync_path(parent_of(target_));
  return warnings;
}

// Hours may have passed, and files appeared. What was there is looked at once more now that nobody finds it under its
// name, and put back if it may not go.
std::vector<std::string> AtomicOutput::remove_replaced() {
  try {
    check_replaced(temporary_, kind_, replace_);
  } catch (...) {
    ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE);
    throw;
  }
  std::error_code error;
  fs::remove_all(temporary_, error);
  if (!error) {
    return {};
  }
  return {fmt::format("what {} replaced could not be removed whole ({}): the rest lies hidden beside it",
                      quote(target_.string()), error.message())};
}

void AtomicOutput::commit_without_exchange() {
  fs::path old = temporary_;
  old += "-old";
  bool stood_there = is_taken(target_);
  if (stood_there && !replace_) {
    fail_io("rename the finished output to", target_, EEXIST);
  }
  if (stood_there) {
    check_replaced(target_, kind_, replace_);
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

void AtomicOutput::lock() {
  lock_.emplace(::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC));
  if (lock_->number() >= 0) {
    // A file system without locks does no harm here: what cannot be locked is never taken for stale.
    while (::flock(lock_->number(), LOCK_EX | LOCK_NB) != 0 && errno == EINTR) {
    }
  }
}

AtomicFile::AtomicFile(const fs::path& target, ReplaceCheck replace)
    : AtomicOutput(target, OutputKind::file, std::move(replace)) {}

AtomicFolder::AtomicFolder(const fs::path& target, ReplaceCheck replace)
    : AtomicOutput(target, OutputKind::folder, std::move(replace)) {
  if (::mkdir(temporary().c_str(), 0777) != 0) {
    fail_io("create", temporary(), errno);
  }
  lock();
}

}  // namespace pare
