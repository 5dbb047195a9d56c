#pragma once
// What two models are asked when they are compared, where it comes from a file.

#include <cstdint>
#include <string>
#include <vector>

#include "pare/model/executor.h"

namespace pare {

struct Question {
  std::vector<Inputs> inputs;
  std::vector<int64_t> numbers;  // of each sequence, as the file counts them
  std::string kind;              // tokens, tensors or text; "random" where nothing is asked by a file
};

}  // namespace pare
