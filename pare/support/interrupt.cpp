#include "pare/support/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "pare/support/error.h"
#include "pare/support/log.h"

namespace pare {

namespace {

static_assert(std::atomic<int>::is_always_lock_free, "a handler may touch nothing else");

volatile std::sig_atomic_t interrupted = 0, last = 0;
std::atomic<int> waiting = 0, saving = 0;
std::atomic<bool> said = true, redrawn = false;

// Only what a handler may call. A terminal shows ^C, or a status line, where the cursor stands: both make room.
void say(int signal) {
  const auto put = [](std::string_view text) {
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) {
      return;  // nobody reads it
    }
  };
  const bool keys = signal == SIGINT, saves = saving > 0;
  if (redrawn) {
    put("\r\x1b[K");
  }
  if (saves) {
    put(keys ? "pare: stopping, and saving what was done; press Ctrl-C again to stop at once, without saving\n"
             : "pare: stopping, and saving what was done; a second signal stops at once, without saving\n");
  } else {
    put(keys ? "pare: stopping; press Ctrl-C again to stop at once\n"
             : "pare: stopping; a second signal stops at once\n");
  }
}

void handle(int signal) {
  const int error = errno;
  interrupted = signal;
  last = signal;
  if (said) {
    say(signal);
  }
  // Whichever comes next finds the default action. A terminal that closes asks nobody to hurry.
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGHUP, SIG_IGN);
  errno = error;
}

}  // namespace

void install_interrupt_handler(InterruptNotice notice) {
  said = notice == InterruptNotice::shown;
  redrawn = can_redraw();
  struct sigaction action = {}, before = {};
  action.sa_handler = handle;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {  // one does not interrupt what another does
    sigaddset(&action.sa_mask, signal);
  }
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) {  // nohup
    sigaction(SIGHUP, &action, nullptr);
  }
}

void check_interrupt() {
  if (interrupted != 0 && waiting == 0) {
    throw Interrupted();
  }
}

bool interrupt_seen() {
  return interrupted != 0;
}

bool was_ctrl_c() {
  return last == SIGINT;
}

void forget_interrupt() {
  interrupted = 0;
}

InterruptsWait::InterruptsWait() {
  ++waiting;
}

InterruptsWait::~InterruptsWait() {
  --waiting;
}

InterruptSaves::InterruptSaves() {
  ++saving;
}

InterruptSaves::~InterruptSaves() {
  --saving;
}

}  // namespace pare
