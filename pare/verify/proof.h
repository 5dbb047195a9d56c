#pragma once
#include <ATen/core/Tensor.h>
#include <set>
#include <string>
#include <vector>
#include "pare/checkpoint/model.h"
namespace pare {
struct Relation {
  std::string tensor, how;
  double residual = 0;
};
struct Proof {
  bool identical = false, complete = false;
  std::vector<Relation> relations;
  std::vector<std::string> gaps;
  std::set<std::string> unexplained;
  std::vector<int64_t> strange_tokens, strange_positions, strange_types;
  double condition = 1, moved = 0;
};
Proof prove(const Model& reference, const Model& candidate, at::Device device);
}  // namespace pare
