#include "pare/cli/train_display.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "pare/support/log.h"
#include "pare/support/text.h"

namespace pare {

namespace {

// Whether a line on stderr can be drawn again.
bool is_redrawn() {
  const char* kind = std::getenv("TERM");
  return !is_quiet() && ::isatty(STDERR_FILENO) != 0 && kind != nullptr && std::string_view(kind) != "dumb";
}

}  // namespace

TrainDisplay::TrainDisplay(std::string name) : name_(std::move(name)), redrawn_(is_redrawn()) {}

TrainDisplay::~TrainDisplay() {
  if (redrawn_) {
    show_status("");
  }
}

void TrainDisplay::show(const TrainProgress& p) {
  const Clock::time_point now = Clock::now();
  if (!p.validation && now - shown_ < (redrawn_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10))) {
    return;
  }
  shown_ = now;
  const std::string line = fmt::format("{}step {} of {}  loss {:.4f}  {} tokens/s{}{}",
                                       name_.empty() ? "" : name_ + "  ", with_commas(p.step), with_commas(p.steps),
                                       p.loss, with_commas(static_cast<int64_t>(p.tokens_per_second)),
                                       p.validation ? fmt::format("  validation {:.4f}", *p.validation) : "",
                                       p.step < p.steps ? "  " + human_time(p.seconds_left) + " left" : "");
  if (p.validation || !redrawn_) {
    log_info(line);
  } else {
    show_status(line.substr(0, text_width() - 1));
  }
}

}  // namespace pare
