#include "pare/model/taps.h"

#include "pare/support/names.h"

namespace pare {

void Taps::record(std::string glob) {
  globs_.push_back(std::move(glob));
}

void Taps::replace(std::string glob, Replace function) {
  replacements_.emplace_back(std::move(glob), std::move(function));
}

bool Taps::wants(const std::string& name) const {
  for (const std::string& glob : globs_) {
    if (glob_match(glob, name)) {
      return true;
    }
  }
  for (const auto& [glob, function] : replacements_) {
    if (glob_match(glob, name)) {
      return true;
    }
  }
  return false;
}

at::Tensor Taps::touch(const std::string& name, at::Tensor value) {
  for (const auto& [glob, function] : replacements_) {
    if (glob_match(glob, name)) {
      value = function(name, value);
    }
  }
  for (const std::string& glob : globs_) {
    if (glob_match(glob, name)) {
      recorded_[name] = value;
      break;
    }
  }
  return value;
}

}  // namespace pare
