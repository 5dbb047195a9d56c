#pragma once
// Which of one set belongs to which of another.

#include <ATen/core/Tensor.h>

#include <vector>

namespace pare {

// For each row the column that it gets, each column once, at the least sum of costs [n, n]: the shortest augmenting
// paths of Jonker and Volgenant, of the order of n³ at worst.
std::vector<int64_t> assign(const at::Tensor& costs);

// The same for many, where pairs that want each other most of all are taken at once and only the others are assigned.
std::vector<int64_t> assign_many(const at::Tensor& costs);

}  // namespace pare
