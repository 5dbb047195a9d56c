#pragma once
// Work that ranks share out piece by piece, and what each of them found together again, in the order of the pieces. So
// a sum over all of it has the order that one process has.

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

#include "pare/ranks/communicator.h"

namespace pare {

// Pieces [first, end), a stretch for each rank. Of fewer pieces than ranks some have none.
struct Share {
  size_t first = 0, end = 0;

  size_t size() const { return end - first; }
  bool contains(size_t piece) const { return piece >= first && piece < end; }
};
// Stretches that cost about the same.
Share share_of(std::span<const double> costs, const Communicator& ranks);

// Ranks that do not have the same would compute something that none of them was asked for. InputError, on all of them,
// where a rank's `text` is not that of the first; `what` it is.
void check_alike(const Communicator& ranks, const std::string& what, const std::string& text);

// The rows of all ranks, one below the other. They are of one type and shape but for how many there are; IoError where
// they are not, since then the ranks do not do the same.
at::Tensor gathered_rows(const at::Tensor& own, const Communicator& ranks);

}  // namespace pare
