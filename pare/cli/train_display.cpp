#include "pare/cli/train_display.h"

#include <fmt/format.h>

#include "pare/support/log.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

TrainDisplay::TrainDisplay(std::string name) : name_(std::move(name)), redrawn_(!is_quiet() && can_redraw()) {}

TrainDisplay::~TrainDisplay() {
  if (redrawn_) {
    show_status("");
  }
}

static std::string measured_text(const TrainProgress& p) {
  std::string text = p.validation ? fmt::format("  validation {:.4f}", *p.validation) : "";
  if (p.condition) {
    text += fmt::format("  condition {:.3g}, rewrite {:.1g} in float32", *p.condition, *p.rewrite_error);
  }
  return text;
}

void TrainDisplay::show(const TrainProgress& p) {
  const Clock::time_point now = Clock::now();
  if (!p.validation && now - shown_ < (redrawn_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10))) {
    return;
  }
  shown_ = now;
  const std::string line = fmt::format(
      "{}step {} of {}  loss {:.4f}  {} tokens/s{}{}", name_.empty() ? "" : name_ + "  ", with_commas(p.step),
      with_commas(p.steps), p.cross_entropy, with_commas(static_cast<int64_t>(p.tokens_per_second)), measured_text(p),
      p.step < p.steps ? "  " + human_time(p.seconds_left) + " left" : "");
  if (p.validation || !redrawn_) {
    log_info(line);
  } else {
    show_status(line.substr(0, text_width() - 1));
  }
}

}  // namespace pare
