#include "pare/support/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "pare/support/interrupt.h"
#include "pare/support/log.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

std::atomic<bool> progress_shown = false;

// 0 when stderr is no terminal that can redraw a line.
int terminal_columns() {
  if (!can_redraw()) {
    return 0;
  }
  winsize size = {};
  bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string amount(uint64_t number, Progress::Unit unit) {
  return unit == Progress::Unit::bytes ? human_bytes(number) : with_commas(static_cast<int64_t>(number));
}

}  // namespace

void show_progress(bool shown) {
  progress_shown = shown;
}

std::string progress_line(const std::string& label, uint64_t done, uint64_t total, Progress::Unit unit, double seconds,
                          int columns, double part) {
  double behind = static_cast<double>(done) + part;
  double share = total == 0 ? 1.0 : std::min(1.0, behind / static_cast<double>(total));
  std::string numbers = fmt::format(" {:3.0f}%  {} of {}", 100 * share, amount(done, unit), amount(total, unit));
  if (seconds > 0.5 && behind > 0) {
    double rate = behind / seconds;
    bool slow = unit == Progress::Unit::items && rate < 0.1;
    bool rough = unit == Progress::Unit::bytes || rate >= 10;
    numbers += slow    ? fmt::format("  {} each", human_time(1 / rate))
               : rough ? fmt::format("  {}/s", amount(static_cast<uint64_t>(rate), unit))
                       : fmt::format("  {:.2f}/s", rate);
    if (share < 1) {
      numbers += fmt::format("  {} left", human_time((static_cast<double>(total) - behind) / rate));
    }
  }
  if (columns == 0) {
    return label + numbers;
  }
  int room = columns - 1 - static_cast<int>(label.size() + numbers.size()) - 3;
  std::string bar;
  if (room >= 8) {
    int width = std::min(room, 30);
    int filled = static_cast<int>(share * width);
    bar = " [" + std::string(filled, '#') + std::string(width - filled, '.') + "]";
  }
  std::string line = label + bar + numbers;
  line.resize(std::min(line.size(), static_cast<size_t>(std::max(columns - 1, 1))));
  return line;
}

Progress::Progress(std::string label, uint64_t total, Unit unit)
    : label_(std::move(label)), total_(total), unit_(unit), started_(Clock::now()), shown_(started_) {}

Progress::~Progress() {
  show_status("");
}

void Progress::advance(uint64_t by) {
  done_ += by;
  part_ = 0;
  show();
}

void Progress::within(double items) {
  part_ = items;
  show();
}

void Progress::show() {
  check_interrupt();
  if (!progress_shown) {
    return;
  }
  Clock::time_point now = Clock::now();
  int columns = terminal_columns();
  std::chrono::duration<double> since_shown = now - shown_, since_start = now - started_;
  // Redrawing costs a system call and a file full of lines helps nobody; short jobs show nothing at all.
  if (since_shown.count() < (columns > 0 ? 0.1 : 10.0)) {
    return;
  }
  shown_ = now;
  std::string line = progress_line(label_, done_, total_, unit_, since_start.count(), columns, part_);
  if (columns > 0) {
    show_status(std::move(line));
  } else {
    log_info(line);
  }
}

}  // namespace pare
