#include "pare/support/progress.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "pare/support/log.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

// What `action` writes to stderr, with stderr going to a file: not a terminal.
template <typename Action>
std::string stderr_of(Action&& action) {
  TemporaryFolder folder;
  std::filesystem::path path = folder.write("stderr", "");
  int saved = ::dup(STDERR_FILENO);
  int file = ::open(path.c_str(), O_WRONLY);
  ::dup2(file, STDERR_FILENO);
  action();
  ::dup2(saved, STDERR_FILENO);
  ::close(file);
  ::close(saved);
  return bytes_of_file(path);
}

}  // namespace

TEST_CASE("a progress line has bar, share, rate and time left") {
  using Unit = Progress::Unit;
  CHECK(progress_line("reading", 25, 100, Unit::items, 5, 80) ==
        "reading [#######.......................]  25%  25 of 100  5.00/s  15 s left");
  CHECK(progress_line("reading", 0, 100, Unit::items, 0, 80) ==
        "reading [..............................]   0%  0 of 100");
  CHECK(progress_line("writing", 3'000'000'000, 4'000'000'000, Unit::bytes, 3, 0) ==
        "writing  75%  3 GB of 4 GB  1 GB/s  1 s left");
  CHECK(progress_line("probing", 1, 4, Unit::items, 50, 0, 1.5) == "probing  62%  1 of 4  20 s each  30 s left");
  CHECK(progress_line("done", 0, 0, Unit::items, 1, 80) == "done [##############################] 100%  0 of 0");
}

TEST_CASE("a progress line never reaches the last column") {
  for (int columns = 1; columns < 120; ++columns) {
    CHECK(progress_line("reading weights", 5, 10, Progress::Unit::items, 2, columns).size() <
          static_cast<size_t>(std::max(columns, 2)));
  }
}

TEST_CASE("a short job away from a terminal shows nothing") {
  CHECK(stderr_of([] {
          Progress progress("reading", 10);
          progress.advance(10);
        }).empty());
}

TEST_CASE("progress is shown where a program asked for it, and only there") {
  // A terminal, and long enough ago that there is something to draw.
  const auto drawn = [] {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    REQUIRE(terminal >= 0);
    REQUIRE(::grantpt(terminal) == 0);
    REQUIRE(::unlockpt(terminal) == 0);
    const int screen = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
    const int saved = ::dup(STDERR_FILENO);
    ::dup2(screen, STDERR_FILENO);
    {
      Progress progress("reading", 10);
      ::usleep(200'000);
      progress.advance(5);
    }
    ::dup2(saved, STDERR_FILENO);
    char text[1000];
    const ssize_t size = ::read(terminal, text, sizeof text);
    for (const int descriptor : {terminal, screen, saved}) {
      ::close(descriptor);
    }
    return std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  };
  ::setenv("TERM", "xterm", 1);
  CHECK(drawn() == "");
  show_progress(true);
  CHECK(contains(drawn(), "5 of 10"));
  show_progress(false);
  CHECK(drawn() == "");
}

TEST_CASE("log lines go to stderr, and quiet leaves the warnings") {
  auto talk = [] {
    log_info("one");
    log_warning("two");
  };
  CHECK(stderr_of(talk) == "one\nwarning: two\n");
  set_quiet(true);
  CHECK(stderr_of(talk) == "warning: two\n");
  CHECK(stderr_of([] { show_status("50%"); }).empty());
  set_quiet(false);
}

TEST_CASE("a log line moves the status line down") {
  CHECK(stderr_of([] {
          show_status("50%");
          log_info("one");
          show_status("");
        }) == "\r\x1b[K50%\r\x1b[Kone\n50%\r\x1b[K");
}
