#pragma once
// How far one checkpoint is from another once everything that its function does not depend on is taken away: the basis
// of the residual stream, the order and gauge of heads, the order and scale of neurons. By least squares, so that two
// models that only resemble each other get the nearest form too. It proves nothing: pare/proof does.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "pare/checkpoint/model.h"

namespace pare {

struct AlignmentStep {
  std::string symmetry;
  double explained = 0;  // of the squared difference before anything was aligned
};

struct AlignedGroup {
  std::string group;
  double before = 0, after = 0;  // |A - B| / |A| of its tensors
};

struct Alignment {
  double before = 0, after = 0;  // the same of all; √2 between models that have nothing to do with each other
  std::vector<AlignmentStep> steps;
  std::vector<AlignedGroup> groups;
  std::string note;  // why there are no numbers, or why a symmetry was left out
};

Alignment align(const Model& reference, const Model& candidate, at::Device device);

}  // namespace pare
