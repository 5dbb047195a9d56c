#pragma once
// Two tensors as they are stored, slice by slice: what pare/verify/quantised.h needs to know of them.

#include <cstdint>
#include <string>

#include "pare/checkpoint/model_folder.h"

namespace pare {

// One tensor of one side. Gains are taken with their offset, so that w and 1 + w can be compared.
struct StoredSide {
  Weight weight;
  Dtype stored = Dtype::f64;
  double added = 0;
  // An adapter was applied: what the other side holds was merged in some type that nobody knows.
  bool merged = false;
  const QuantisedRange* range = nullptr;
  std::string name;  // of the tensor there: that of the table for a head that is tied

  bool is_there() const { return static_cast<bool>(weight); }
};

struct RowSlice {
  int64_t begin = 0, count = 0;
  bool whole = true;
};

// What is known of a tensor after some of its slices.
struct StoredTally {
  bool all_same = true, in_blocks = false;
  int64_t entries = 0, far = 0, clipped = 0, groups = 0, disordered = 0, wide = 0;
  int64_t stretches = 0, strange = 0;  // of neighbours, and those that are not the other side's times 1
  double largest_error = 0, largest_clip = 0;
  double squares = 0, allowed_squares = 0;  // of what is not clipped: its error, and what is usual for its steps
  double moved_squares = 0;                 // what rounding of scales can make
  double reference = 0, stored = 0, product = 0, difference = 0;  // sums of squares, of the two and what they make
};

// Adds what one slice of both says.
void tally_slice(const StoredSide& reference, const StoredSide& candidate, const RowSlice& slice, StoredTally& tally);

}  // namespace pare
