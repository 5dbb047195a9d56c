#include "pare/support/error.h"

#include <fmt/format.h>

namespace pare {

Error::Error(const std::string& message, std::vector<ErrorReason> why)
    : std::runtime_error(message), reasons(std::move(why)) {
  if (reasons.empty()) {
    reasons.push_back({message});
  }
}

void Problems::throw_if_any(const std::string& subject) const {
  if (list_.empty()) {
    return;
  }
  if (list_.size() == 1) {
    throw InputError(fmt::format("{}: {}", subject, list_.front()));
  }
  // A hostile file can be wrong in a million places; the first ones say it all.
  constexpr size_t shown = 20, listed = 1000;
  std::string message = fmt::format("{}: {} problems", subject, list_.size());
  for (size_t i = 0; i < list_.size() && i < shown; ++i) {
    message += "\n  " + list_[i];
  }
  if (list_.size() > shown) {
    message += fmt::format("\n  ... and {} more", list_.size() - shown);
  }
  std::vector<ErrorReason> reasons;
  for (size_t i = 0; i < list_.size() && i < listed; ++i) {
    reasons.push_back({list_[i]});
  }
  throw InputError(message, std::move(reasons));
}

void fail_check(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(fmt::format("{}:{}: {} does not hold: {}", file, line, condition, message));
}

}  // namespace pare
