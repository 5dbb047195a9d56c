#pragma once
// The two largest singular values of a square matrix on the CPU, without the others: what the gap of attention asks.
// All n of them cost 8/3 n³, most of it at the speed of memory; these cost 16 n² for each step of a search of about 15.

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace pare {

// To 1e-12 of each, float64 [n, n]. Nothing where the search does not get there in a third of n directions, as with
// many values of one size: then all of them have to be computed.
std::optional<std::pair<double, double>> leading_values(const at::Tensor& matrix);

// Below it, all values are as fast.
constexpr int64_t shortest_search = 192;

}  // namespace pare
