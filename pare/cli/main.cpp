// The only place that prints errors and ends the program.

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/support/interrupt.h"
#include "pare/support/log.h"

namespace {

// With --json every command prints one document, also where it fails. Only what cannot be printed is left out.
int report(const pare::Failure& failure, const std::vector<std::string>& arguments) {
  if (failure.kind == "ended_elsewhere" || pare::is_silent()) {  // another rank says why
    return failure.exit_code;
  }
  pare::print_failure(failure, pare::has_flag(arguments, "--json"), pare::has_flag(arguments, "--quiet"));
  return failure.exit_code;
}

int run(const std::vector<std::string>& arguments) {
  try {
    pare::run_command_line(arguments);
    return 0;
  } catch (...) {
    return report(pare::describe(std::current_exception()), arguments);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // A closed stdout shows as EPIPE where it is written, a file size limit as EFBIG.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // Else the first file that is opened would be the stdin that nobody gave.
  if (fcntl(STDIN_FILENO, F_GETFD) < 0) {
    open("/dev/null", O_RDONLY);
  }
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool silent = pare::has_flag(arguments, "--json") && pare::has_flag(arguments, "--quiet");
  pare::install_interrupt_handler(silent ? pare::InterruptNotice::silent : pare::InterruptNotice::shown);
  const int code = run(arguments);
  // libtorch takes back each of its thousands of operators where a program ends: a quarter of the time of a
  // short command.
  std::fflush(nullptr);
  std::_Exit(code);
}
