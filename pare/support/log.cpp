#include "pare/support/log.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "pare/support/table.h"

namespace pare {

namespace {

struct Screen {
  std::mutex mutex;
  std::string status;
  bool quiet = false, silent = false;
};

Screen& screen() {
  static Screen instance;
  return instance;
}

// One write per change, so that lines of several threads and processes do not mix.
void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

constexpr const char* clear_line = "\r\x1b[K";

void print_line(std::string_view prefix, std::string_view line) {
  Screen& s = screen();
  std::string text;
  if (!s.status.empty()) {
    text += clear_line;
  }
  text.append(fitted_message(std::string(prefix).append(line).append("\n"))).append(s.status);
  print(text);
}

}  // namespace

void log_info(std::string_view line) {
  std::lock_guard lock(screen().mutex);
  if (!screen().quiet && !screen().silent) {
    print_line("", line);
  }
}

void log_warning(std::string_view line) {
  std::lock_guard lock(screen().mutex);
  if (!screen().silent) {
    print_line("warning: ", line);
  }
}

void set_quiet(bool quiet) {
  std::lock_guard lock(screen().mutex);
  screen().quiet = quiet;
}

bool is_quiet() {
  std::lock_guard lock(screen().mutex);
  return screen().quiet;
}

void set_silent(bool silent) {
  std::lock_guard lock(screen().mutex);
  screen().silent = silent;
}

bool is_silent() {
  std::lock_guard lock(screen().mutex);
  return screen().silent;
}

bool can_redraw() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) != 0 && kind != nullptr && std::string_view(kind) != "dumb";
}

void show_status(std::string line) {
  std::lock_guard lock(screen().mutex);
  Screen& s = screen();
  if (s.quiet || line == s.status) {
    return;
  }
  print(clear_line + line);
  s.status = std::move(line);
}

}  // namespace pare
