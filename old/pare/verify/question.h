#pragma once
// What two models are asked when they are compared, and where it came from.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pare/model/executor.h"

namespace pare {

struct InputSource {
  std::string kind;              // random, tokens or tensors
  std::optional<uint64_t> seed;  // of random ones
};

struct Question {
  std::vector<Inputs> inputs;
  std::vector<int64_t> numbers;  // of each sequence, as the file counts them; empty for random ones
  InputSource source;
};

}  // namespace pare
