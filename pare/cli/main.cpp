// The only place that prints errors and picks exit codes.

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"

namespace {

int refuse(const std::string& message) {
  fmt::print(stderr, "pare: error: {}\n", message);
  return 1;
}

int report_bug(const std::string& message) {
  fmt::print(stderr, "pare: internal error: {}\npare: this is a bug of pare, not of your input: please report it\n",
             message);
  return 70;
}

// libtorch has an error of its own for the GPU's memory, but not for the CPU's.
bool is_out_of_memory(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         text.find("DefaultCPUAllocator: ") != std::string_view::npos;
}

std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

}  // namespace

int main(int argc, char** argv) {
  // A closed stdout shows as EPIPE where it is written, a file size limit as EFBIG.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  pare::install_interrupt_handler();
  try {
    pare::run_command_line(std::vector<std::string>(argv + 1, argv + argc));
    return 0;
  } catch (const pare::ReaderGone&) {
    return 0;
  } catch (const pare::Interrupted&) {
    fmt::print(stderr, "pare: interrupted\n");
    return 130;
  } catch (const pare::InputError& error) {
    return refuse(error.what());
  } catch (const pare::Refused& refusal) {
    fmt::print(stderr, "pare: refused: {}\n", refusal.what());
    return 2;
  } catch (const pare::VerificationFailed& failure) {
    fmt::print(stderr, "pare: verification failed: {}\n", failure.what());
    return 3;
  } catch (const pare::IoError& error) {
    return refuse(error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return refuse(error.what());
  } catch (const std::bad_alloc&) {
    return refuse("out of memory");
  } catch (const c10::Error& error) {
    return is_out_of_memory(error) ? refuse("out of memory: " + first_line(error))
                                   : report_bug(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return report_bug(error.what());
  }
}
