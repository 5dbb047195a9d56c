#include "pare/support/files.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;
namespace fs = std::filesystem;

namespace {

void anything(const fs::path&) {}

std::vector<int> flock_errors;  // what it says the next times, the last first

}  // namespace

// In place of the system's: not every file system that people have is at hand here.
extern "C" int flock(int descriptor, int operation) noexcept {
  if (flock_errors.empty()) {
    return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
  }
  errno = flock_errors.back();
  flock_errors.pop_back();
  return -1;
}

TEST_CASE("a folder that cannot be locked is not worked in, and one that a signal disturbed is") {
  const TemporaryFolder folder;
  for (const int error : {ENOLCK, EOPNOTSUPP, EIO}) {
    flock_errors = {error};
    const std::string message = message_of<IoError>([&] { lock_folder(folder.path()); });
    CHECK_MESSAGE(contains(message, fmt::format("cannot lock '{}': {}", folder.path().string(), std::strerror(error))),
                  message);
  }
  flock_errors = {EINTR, EINTR};
  const Descriptor held(lock_folder(folder.path()));
  CHECK(flock_errors.empty());
  CHECK(contains(message_of<InputError>([&] { lock_folder(folder.path()); }), "is in use"));
}

TEST_CASE("what nobody can tell to be left behind stays") {
  const TemporaryFolder folder;
  const fs::path partial = folder.path() / fmt::format(".out.partial-{}-0", 1 << 22);  // no process has this number
  fs::create_directory(partial);
  flock_errors = {0, ENOLCK};  // of the one that stands there, and of the new one
  { AtomicFolder output(folder.path() / "out"); }
  flock_errors.clear();
  CHECK(fs::exists(partial));
  { AtomicFolder output(folder.path() / "out"); }
  CHECK(!fs::exists(partial));
}

TEST_CASE("what appeared meanwhile, and may not go, never loses its name") {
  const TemporaryFolder folder;
  const fs::path target = folder.path() / "run";
  std::vector<std::string> seen;
  AtomicFolder output(target, [&](const fs::path&) {
    seen.push_back(bytes_of_file(target / "who"));
    throw InputError("it stays");
  });
  write_text_file(output.temporary() / "who", "the second");
  fs::create_directory(target);
  write_text_file(target / "who", "the first");
  CHECK(message_of<InputError>([&] { output.commit(); }) == "it stays");
  CHECK(seen == std::vector<std::string>{"the first"});
  CHECK(bytes_of_file(target / "who") == "the first");
}

TEST_CASE("a text file is read whole") {
  TemporaryFolder folder;
  std::string text("a\0b\n", 4);
  CHECK(read_text_file(folder.write("a.txt", text), 4) == text);
  CHECK(read_text_file(folder.write("empty.txt", ""), 4).empty());
}

TEST_CASE("what cannot be read is named, with the reason") {
  TemporaryFolder folder;
  auto refusal = [&](const fs::path& path) { return message_of<InputError>([&] { read_text_file(path, 3); }); };
  CHECK(contains(refusal(folder.path() / "missing.json"), "missing.json': no such file"));
  CHECK(contains(refusal(folder.write("a.json", "{}") / "b.json"), "b.json': no such file"));
  CHECK(contains(refusal(folder.path()), "is a folder"));
  CHECK(contains(refusal(folder.write("large.json", "1234")), "has 4 bytes, more than the 3"));
  fs::path pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(contains(refusal(pipe), "is not a regular file"));
}

TEST_CASE("a huge sparse file is refused before anything is allocated") {
  TemporaryFolder folder;
  fs::path path = folder.write("sparse.json", "");
  fs::resize_file(path, uint64_t{1} << 42);
  CHECK(contains(message_of<InputError>([&] { read_text_file(path, 1 << 20); }), "4,398,046,511,104 bytes"));
}

TEST_CASE("permissions are an error of the system") {
  TemporaryFolder folder;
  fs::path path = folder.write("secret.json", "{}");
  fs::permissions(path, fs::perms::none);
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  int status = status_of([&] {
    // Root may read everything, so root becomes someone else.
    if (::geteuid() == 0 && ::seteuid(65534) != 0) {
      return false;
    }
    return contains(message_of<IoError>([&] { read_text_file(path, 10); }), "secret.json': Permission denied") &&
           contains(message_of<IoError>([] { AtomicFolder("/out"); }), "Permission denied");
  });
  fs::permissions(folder.path(), fs::perms::owner_all);
  CHECK(status == 0);
}

TEST_CASE("a write that fails is an error of the system, and the output is removed") {
  TemporaryFolder folder;
  int status = status_of([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = {1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string message = message_of<IoError>([&] {
      AtomicFolder output(folder.path() / "out");
      write_text_file(output.temporary() / "a.txt", std::string(5000, 'x'));
    });
    return message == "cannot write '" + (folder.path() / "out" / "a.txt").string() + "': File too large";
  });
  CHECK(status == 0);
  CHECK(folder.entries() == 0);
}

TEST_CASE("a full disk comes with what to do") {
  CHECK(message_of<IoError>([] { fail_io("write", "model.safetensors", ENOSPC); }) ==
        "cannot write 'model.safetensors': No space left on device: free some space, or write elsewhere");
}

TEST_CASE("a read past the end is short, also when the file shrank") {
  TemporaryFolder folder;
  fs::path path = folder.write("a.bin", "0123456789");
  InputFile file(path);
  CHECK(file.size() == 10);
  std::string text(4, ' ');
  CHECK(file.read_at(8, std::as_writable_bytes(std::span(text))) == 2);
  CHECK(text.substr(0, 2) == "89");
  fs::resize_file(path, 3);
  CHECK(file.read_at(8, std::as_writable_bytes(std::span(text))) == 0);
}

TEST_CASE("an output file never replaces another by accident") {
  TemporaryFolder folder;
  fs::path path = folder.write("a.txt", "old");
  CHECK(contains(message_of<IoError>([&] { write_text_file(path, "new"); }), "File exists"));
  CHECK(bytes_of_file(path) == "old");
}

TEST_CASE("an atomic file appears on commit, and not before") {
  TemporaryFolder folder;
  fs::path target = folder.path() / "out.json";
  {
    AtomicFile output(target);
    CHECK(output.temporary().parent_path() == folder.path());
    write_text_file(output.temporary(), "new");
    CHECK_FALSE(fs::exists(target));
    output.commit();
    CHECK(bytes_of_file(target) == "new");
  }
  CHECK(bytes_of_file(target) == "new");
  CHECK(folder.entries() == 1);
}

TEST_CASE("an atomic output that is not committed leaves nothing behind") {
  TemporaryFolder folder;
  CHECK_THROWS_AS(
      [&] {
        AtomicFolder output(folder.path() / "out");
        write_text_file(output.temporary() / "a.txt", "half");
        throw Interrupted();
      }(),
      Interrupted);
  CHECK(folder.entries() == 0);
}

TEST_CASE("an existing output stays unless it is to be replaced") {
  TemporaryFolder folder;
  fs::path file = folder.write("out.json", "old");
  fs::path tree = folder.path() / "model";
  fs::create_directory(tree);
  folder.write("model/old.txt", "old");
  fs::create_symlink("nowhere", folder.path() / "link");
  CHECK(contains(message_of<InputError>([&] { AtomicFile{file}; }), "out.json' exists already"));
  CHECK(contains(message_of<InputError>([&] { AtomicFolder{tree}; }), "model' exists already"));
  CHECK(contains(message_of<InputError>([&] { AtomicFile(folder.path() / "link"); }), "exists already"));
  CHECK(contains(message_of<InputError>([&] { AtomicFile(tree, anything); }), "is a folder"));
  CHECK(contains(message_of<InputError>([&] { AtomicFolder(file, anything); }), "is a file"));
  CHECK(bytes_of_file(file) == "old");
}

TEST_CASE("with replace the old output goes only once the new one is complete") {
  TemporaryFolder folder;
  fs::path tree = folder.path() / "model";
  fs::create_directory(tree);
  folder.write("model/old.txt", "old");
  {
    AtomicFolder abandoned(tree, anything);
    write_text_file(abandoned.temporary() / "new.txt", "half");
  }
  CHECK(bytes_of_file(tree / "old.txt") == "old");
  CHECK(folder.entries() == 1);
  {
    AtomicFolder output(tree.string() + "/", anything);
    write_text_file(output.temporary() / "new.txt", "new");
    CHECK(bytes_of_file(tree / "old.txt") == "old");
    output.commit();
  }
  CHECK(bytes_of_file(tree / "new.txt") == "new");
  CHECK_FALSE(fs::exists(tree / "old.txt"));
  CHECK(folder.entries() == 1);
  fs::path file = folder.write("out.json", "old");
  {
    AtomicFile output(file, anything);
    write_text_file(output.temporary(), "new");
    output.commit();
  }
  CHECK(bytes_of_file(file) == "new");
  CHECK(folder.entries() == 2);
}

TEST_CASE("an output that appears meanwhile is not replaced") {
  TemporaryFolder folder;
  fs::path target = folder.path() / "out.json";
  {
    AtomicFile output(target);
    write_text_file(output.temporary(), "ours");
    folder.write("out.json", "theirs");
    CHECK(contains(message_of<IoError>([&] { output.commit(); }), "out.json': File exists"));
  }
  CHECK(bytes_of_file(target) == "theirs");
  CHECK(folder.entries() == 1);
}

TEST_CASE("what may be replaced is asked when an output begins, and again when it is complete") {
  TemporaryFolder folder;
  fs::path tree = folder.path() / "model";
  fs::create_directory(tree);
  const ReplaceCheck only_empty = [](const fs::path& target) {
    if (!fs::is_empty(target)) {
      throw InputError("not empty");
    }
  };
  {
    AtomicFolder output(tree, only_empty);
    write_text_file(output.temporary() / "new.txt", "new");
    folder.write("model/notes.txt", "mine");
    CHECK(message_of<InputError>([&] { output.commit(); }) == "not empty");
  }
  CHECK(bytes_of_file(tree / "notes.txt") == "mine");
  CHECK(folder.entries() == 1);
  CHECK(message_of<InputError>([&] { AtomicFolder output(tree, only_empty); }) == "not empty");
}

TEST_CASE("a link is not replaced") {
  TemporaryFolder folder;
  fs::create_directory(folder.path() / "model");
  fs::path file = folder.write("a.txt", "old");
  fs::create_symlink("model", folder.path() / "to-folder");
  fs::create_symlink("a.txt", folder.path() / "to-file");
  CHECK(contains(message_of<InputError>([&] { AtomicFolder(folder.path() / "to-folder", anything); }), "is a link"));
  CHECK(contains(message_of<InputError>([&] { AtomicFile(folder.path() / "to-file", anything); }), "is a link"));
}

TEST_CASE("messages call an output by the name that it will have") {
  TemporaryFolder folder;
  const AtomicFolder output(folder.path() / "a.partial-1-2");
  CHECK(output.temporary() != folder.path() / "a.partial-1-2");
  CHECK(shown(output.temporary()) == folder.path() / "a.partial-1-2");
  CHECK(shown(output.temporary() / "b" / "c.json") == folder.path() / "a.partial-1-2" / "b" / "c.json");
  for (const char* other : {"a/b", "./a", ".a.partial-0-2", "a.partial-x", ".partial-", "/", ""}) {
    CHECK(shown(other) == other);
  }
  CHECK(contains(message_of<InputError>([&] { read_text_file(output.temporary() / "b.json", 3); }),
                 "a.partial-1-2/b.json': no such file"));
}

TEST_CASE("an output needs a name and a folder to be in") {
  TemporaryFolder folder;
  for (const char* path : {".", "..", "/", ""}) {
    CAPTURE(path);
    CHECK(contains(message_of<InputError>([&] { AtomicFolder output(path, anything); }), "no name of its own"));
  }
  CHECK(contains(message_of<InputError>([&] { AtomicFolder output("-"); }), "never go to stdout"));
  fs::path orphan = folder.path() / "missing" / "out";
  CHECK(contains(message_of<InputError>([&] { AtomicFolder output(orphan); }), "there is no folder"));
}

TEST_CASE("a name that an earlier process left behind is not touched") {
  TemporaryFolder folder;
  fs::path left;
  {
    AtomicFolder probe(folder.path() / "out");
    left = probe.temporary();
  }
  folder.write(left.filename().string(), "someone's");
  {
    AtomicFolder output(folder.path() / "out");
    CHECK(output.temporary() != left);
  }
  CHECK(bytes_of_file(left) == "someone's");
}
