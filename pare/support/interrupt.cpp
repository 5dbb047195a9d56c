#include "pare/support/interrupt.h"

#include <csignal>

#include "pare/support/error.h"

namespace pare {

namespace {

volatile std::sig_atomic_t interrupted = 0;

void handle(int signal) {
  interrupted = 1;
  // The second signal finds the default action.
  std::signal(signal, SIG_DFL);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = handle;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);  // a terminal that was closed
}

void check_interrupt() {
  if (interrupted != 0) {
    throw Interrupted();
  }
}

void forget_interrupt() {
  interrupted = 0;
}

}  // namespace pare
