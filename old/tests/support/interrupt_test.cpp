#include "pare/support/interrupt.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/progress.h"
#include "tests/support/helpers.h"

using namespace pare;

TEST_CASE("a signal ends the job at the next safe place, and its output is removed") {
  TemporaryFolder folder;
  int status = status_of([&] {
    install_interrupt_handler();
    try {
      AtomicFolder output(folder.path() / "out");
      write_text_file(output.temporary() / "a.txt", "half");
      Progress progress("working", 10);
      progress.advance();
      ::raise(SIGTERM);
      progress.advance();
    } catch (const Interrupted&) {
      return true;
    }
    return false;
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(folder.entries() == 0);
}

TEST_CASE("a second signal kills at once") {
  int status = status_of([] {
    install_interrupt_handler();
    ::raise(SIGINT);
    ::raise(SIGINT);
    return true;
  });
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGINT);
}

TEST_CASE("without a signal nothing is thrown") {
  CHECK_NOTHROW(check_interrupt());
}
