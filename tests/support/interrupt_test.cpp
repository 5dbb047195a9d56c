#include "pare/support/interrupt.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <optional>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/progress.h"
#include "tests/support/helpers.h"

using namespace pare;

TEST_CASE("a signal ends the job at the next safe place, and its output is removed") {
  TemporaryFolder folder;
  int status = status_of([&] {
    install_interrupt_handler(InterruptNotice::silent);
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

TEST_CASE("a second signal kills at once, whichever the first was") {
  for (const auto& [first, second] :
       {std::pair{SIGINT, SIGINT}, {SIGTERM, SIGTERM}, {SIGINT, SIGTERM}, {SIGHUP, SIGINT}}) {
    const int status = status_of([first = first, second = second] {
      install_interrupt_handler(InterruptNotice::silent);
      ::raise(first);
      ::raise(second);
      return true;
    });
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == second);
  }
}

TEST_CASE("a terminal that closes ends a job as a signal does, hurries none, and leaves alone what nohup started") {
  CHECK(status_of([] {
          install_interrupt_handler(InterruptNotice::silent);
          ::raise(SIGHUP);
          ::raise(SIGHUP);
          return message_of<Interrupted>(check_interrupt) == "interrupted";
        }) == 0);
  CHECK(status_of([] {
          ::signal(SIGHUP, SIG_IGN);
          install_interrupt_handler(InterruptNotice::silent);
          ::raise(SIGHUP);
          check_interrupt();
          return true;
        }) == 0);
}

TEST_CASE("the first signal is answered at once, with what a second one does") {
  const TemporaryFolder folder;
  const auto said = [&](InterruptNotice notice, int signal, bool saves) {
    const std::filesystem::path file = folder.write("stderr", "");
    CHECK(status_of([&] {
            ::dup2(::open(file.c_str(), O_WRONLY), STDERR_FILENO);
            install_interrupt_handler(notice);
            const std::optional<InterruptSaves> saving =
                saves ? std::optional<InterruptSaves>(std::in_place) : std::nullopt;
            ::raise(signal);  // and nothing asks
            return true;
          }) == 0);
    return bytes_of_file(file);
  };
  CHECK(said(InterruptNotice::shown, SIGINT, false) == "pare: stopping; press Ctrl-C again to stop at once\n");
  CHECK(said(InterruptNotice::shown, SIGTERM, false) == "pare: stopping; a second signal stops at once\n");
  CHECK(contains(said(InterruptNotice::shown, SIGINT, true),
                 "saving what was done; press Ctrl-C again to stop at once, without"));
  CHECK(said(InterruptNotice::silent, SIGINT, false).empty());
}

TEST_CASE("what is being written is finished before an interrupt is seen") {
  CHECK(status_of([] {
          install_interrupt_handler(InterruptNotice::silent);
          {
            const InterruptsWait wait;
            ::raise(SIGINT);
            check_interrupt();
          }
          return message_of<Interrupted>(check_interrupt) == "interrupted";
        }) == 0);
}

TEST_CASE("without a signal nothing is thrown") {
  CHECK_NOTHROW(check_interrupt());
}
