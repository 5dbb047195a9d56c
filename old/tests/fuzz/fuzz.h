#pragma once
// Any bytes give a result or an InputError; everything else, an InternalError too, is a finding.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pare/support/error.h"

namespace pare {

template <typename Reader>
int fuzz(const uint8_t* data, size_t size, Reader&& reader) {
  try {
    reader(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const InputError&) {
    // The answer to most bytes.
  }
  return 0;
}

}  // namespace pare
