#include "pare/support/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "pare/support/error.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace fs = std::filesystem;

void fail_io(std::string_view verb, const fs::path& path, int error_number) {
  std::string hint;
  if (error_number == ENOSPC || error_number == EDQUOT) {
    hint = ": free some space, or write elsewhere";
  } else if (error_number == EACCES || error_number == EPERM || error_number == EROFS) {
    hint = ": check its permissions and those of its folder";
  }
  throw IoError(fmt::format("cannot {} {}: {}{}", verb, quote(shown(path)), std::strerror(error_number), hint));
}

namespace {

struct stat examined(const Descriptor& descriptor, const fs::path& path) {
  struct stat info;
  if (::fstat(descriptor.number(), &info) != 0) {
    fail_io("examine", path, errno);
  }
  return info;
}

FileState state_of(const struct stat& info) {
  const auto nanoseconds = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  return {static_cast<uint64_t>(info.st_size), nanoseconds(info.st_mtim), nanoseconds(info.st_ctim)};
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) {
    ::close(number_);
  }
}

InputFile::InputFile(fs::path path)
    : path_(std::move(path)),
      // Non-blocking, so that a pipe in the place of a file does not hang.
      descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_.number() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw InputError(fmt::format("{}: no such file", quote(shown(path_))));
    }
    fail_io("open", path_, errno);
  }
  const struct stat info = examined(descriptor_, path_);
  refuse_if(S_ISDIR(info.st_mode), "{} is a folder, expected a file", quote(shown(path_)));
  refuse_if(!S_ISREG(info.st_mode), "{} is not a regular file", quote(shown(path_)));
  opened_ = state_of(info);
}

void InputFile::check_unchanged() const {
  refuse_if(state_of(examined(descriptor_, path_)) != opened_,
            "{} changed while it was read: wait until no other program writes or replaces it", quote(shown(path_)));
}

size_t InputFile::read_at(uint64_t offset, std::span<std::byte> into) const {
  size_t done = 0;
  while (done < into.size()) {
    ssize_t got =
        ::pread(descriptor_.number(), into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail_io("read", path_, errno);
    }
    if (got == 0) {
      break;
    }
    done += static_cast<size_t>(got);
  }
  return done;
}

OutputFile::OutputFile(fs::path path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (descriptor_.number() < 0) {
    fail_io("create", path_, errno);
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t put = ::write(descriptor_.number(), bytes.data(), bytes.size());
    if (put < 0 && errno != EINTR) {
      fail_io("write", path_, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(std::max<ssize_t>(put, 0)));
  }
}

void OutputFile::sync() {
  if (::fsync(descriptor_.number()) != 0) {
    fail_io("sync", path_, errno);
  }
}

Locked try_lock(int number, const fs::path& path) {
  while (::flock(number, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return Locked::by_another;
    }
    if (errno != EINTR) {
      throw IoError(
          fmt::format("cannot lock {}: {}. Two processes that write there would spoil each other's files: "
                      "choose a place on a file system with locks (flock)",
                      quote(shown(path)), std::strerror(errno)));
    }
  }
  return Locked::yes;
}

int lock_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    fail_io("open", folder, errno);
  }
  try {
    if (try_lock(descriptor, folder) == Locked::yes) {
      return descriptor;
    }
    throw InputError(fmt::format("{} is in use: another process trains there; wait for it, or choose another folder",
                                 quote(folder.string())));
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

bool path_exists(const fs::path& path) {
  std::error_code unknown;
  return fs::exists(path, unknown);
}

bool is_folder(const fs::path& path) {
  std::error_code unknown;
  return fs::is_directory(path, unknown);
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator next(folder, error), end; !error && next != end; next.increment(error)) {
    entries.push_back(*next);
  }
  if (error) {
    fail_io("list", folder, error.value());
  }
  std::ranges::sort(entries);
  return entries;
}

std::string read_text_file(const fs::path& path, uint64_t max_bytes) {
  InputFile file(path);
  refuse_if(file.size() > max_bytes, "{} has {} bytes, more than the {} that a file of its kind may have",
            quote(shown(path)), with_commas(static_cast<int64_t>(file.size())),
            with_commas(static_cast<int64_t>(max_bytes)));
  std::string text(file.size(), '\0');
  text.resize(file.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

void write_text_file(const fs::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.sync();
}

void refuse_lfs_pointer(std::string_view begin, const std::string& subject) {
  refuse_if(begin.starts_with("version https://git-lfs"),
            "{} is a Git LFS pointer and not the file itself: run 'git lfs install' and then 'git lfs pull' in "
            "the repository that it was cloned from",
            subject);
}

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
