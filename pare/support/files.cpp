#include "pare/support/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

void sync(const fs::path& path) {
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
  if (fs::is_directory(fs::symlink_status(path))) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      sync_tree(entry.path());
    }
  }
  sync(path);
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

bool is_taken(const fs::path& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

}  // namespace

void fail_io(std::string_view verb, const fs::path& path, int error_number) {
  std::string hint;
  if (error_number == ENOSPC || error_number == EDQUOT) {
    hint = ": free some space, or write elsewhere";
  } else if (error_number == EACCES || error_number == EPERM || error_number == EROFS) {
    hint = ": check its permissions and those of its folder";
  }
  throw IoError(fmt::format("cannot {} {}: {}{}", verb, quote(path.string()), std::strerror(error_number), hint));
}

std::string read_text_file(const fs::path& path, uint64_t max_bytes) {
  // Non-blocking, so that a pipe in the place of a file does not hang.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.number() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw InputError(fmt::format("{}: no such file", quote(path.string())));
    }
    fail_io("open", path, errno);
  }
  struct stat info;
  if (::fstat(file.number(), &info) != 0) {
    fail_io("examine", path, errno);
  }
  if (S_ISDIR(info.st_mode)) {
    throw InputError(fmt::format("{} is a folder, expected a file", quote(path.string())));
  }
  if (!S_ISREG(info.st_mode)) {
    throw InputError(fmt::format("{} is no regular file", quote(path.string())));
  }
  uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size > max_bytes) {
    throw InputError(fmt::format("{} has {} bytes, more than the {} that a file of its kind may have",
                                 quote(path.string()), with_commas(info.st_size),
                                 with_commas(static_cast<int64_t>(max_bytes))));
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < text.size()) {
    ssize_t got = ::read(file.number(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail_io("read", path, errno);
    }
    if (got == 0) {
      throw InputError(fmt::format("{} became shorter while it was read", quote(path.string())));
    }
    done += static_cast<size_t>(got);
  }
  return text;
}

void write_text_file(const fs::path& path, std::string_view text) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.number() < 0) {
    fail_io("create", path, errno);
  }
  while (!text.empty()) {
    ssize_t put = ::write(file.number(), text.data(), text.size());
    if (put < 0 && errno != EINTR) {
      fail_io("write", path, errno);
    }
    if (put > 0) {
      text.remove_prefix(static_cast<size_t>(put));
    }
  }
  if (::fsync(file.number()) != 0) {
    fail_io("sync", path, errno);
  }
}

AtomicOutput::AtomicOutput(const fs::path& target, bool replace) : target_(normal_target(target)), replace_(replace) {
  fs::path parent = parent_of(target_);
  std::error_code error;
  if (!fs::is_directory(parent, error)) {
    throw InputError(
        fmt::format("cannot write {}: its folder {} does not exist", quote(target_.string()), quote(parent.string())));
  }
  if (!replace && is_taken(target_)) {
    throw InputError(
        fmt::format("{} exists already: choose another output, or replace it with --force", quote(target_.string())));
  }
  // A killed process may have left this name behind, and process numbers come again: take one that is free.
  for (int attempt = 0;; ++attempt) {
    temporary_ = parent / fmt::format(".{}.partial-{}-{}", target_.filename().string(), ::getpid(), attempt);
    if (!is_taken(temporary_)) {
      return;
    }
  }
}

AtomicOutput::~AtomicOutput() {
  std::error_code ignored;  // already unwinding, or already renamed
  fs::remove_all(temporary_, ignored);
}

void AtomicOutput::commit() {
  sync_tree(temporary_);
  unsigned flags = is_taken(target_) && replace_ ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), flags) != 0) {
    if (errno == EEXIST) {
      throw InputError(
          fmt::format("{} appeared while the output was written: it was not replaced", quote(target_.string())));
    }
    if (errno != EINVAL && errno != ENOSYS) {
      fail_io("replace", target_, errno);
    }
    commit_without_exchange();
  }
  sync(parent_of(target_));
}

// For file systems that know no exchange (NFS, some network mounts): the old one steps aside for a moment.
void AtomicOutput::commit_without_exchange() {
  fs::path aside = temporary_;
  aside += "-old";
  bool stood_there = is_taken(target_);
  if (stood_there && !replace_) {
    throw InputError(
        fmt::format("{} appeared while the output was written: it was not replaced", quote(target_.string())));
  }
  if (stood_there && ::rename(target_.c_str(), aside.c_str()) != 0) {
    fail_io("replace", target_, errno);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    int cause = errno;
    ::rename(aside.c_str(), target_.c_str());
    fail_io("replace", target_, cause);
  }
  std::error_code ignored;  // the new one is in place; a leftover harms nobody
  fs::remove_all(aside, ignored);
}

AtomicFolder::AtomicFolder(const fs::path& target, bool replace) : AtomicOutput(target, replace) {
  if (::mkdir(temporary().c_str(), 0777) != 0) {
    fail_io("create", temporary(), errno);
  }
}

}  // namespace pare
