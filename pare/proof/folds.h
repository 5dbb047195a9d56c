#pragma once
// What one of the two models may have folded into something else: gains and biases of norms into what reads them, what
// attention always adds into biases behind it. Whether that is legal, and what it comes to, is decided by structure and
// by the numbers themselves; nothing is searched for.

#include <cstdint>
#include <map>
#include <set>

#include "pare/arch/tensor_id.h"
#include "pare/proof/rounded.h"

namespace pare {

class ModelView;

// What is taken together, on both sides or on neither, and only where one side did: what is compared one by one is
// compared more closely.
struct Folds {
  std::map<size_t, ModuleId> gains, biases;  // of the norm that writes a stream, into what reads it
  std::map<size_t, int64_t> constants;       // of a block's attention, into what reads the stream that it alone writes
  std::set<int64_t> values;                  // of a block's values, into its output's
  int64_t quietest = 0;                      // the token with the smallest row in the reference's first-layer table
  std::set<size_t> blind;  // streams without a mean: what a head that is tied makes of one is not seen

  bool shifts(size_t stream) const { return biases.contains(stream) || constants.contains(stream); }
};

// Where it is legal on both sides, and one of them did it.
Folds possible_folds(const ModelView& reference, const ModelView& candidate);

// c' M for each head of collapsed scores or values [heads, width, n], what a constant on the stream before them adds:
// [heads, n]. Undefined where there is none.
Rounded collapsed_shift(const ModelView& side, const TensorId& matrices, size_t stream);
// A row of a first-layer table that stands for the constant in all of them: that of the quietest token, the same one on
// both sides. Taken off any other it adds no more than that row's own rounding; a mean would add that of the loudest.
Rounded constant_in_table(const ModelView& side);
// What a block's values always add is in its output's bias.
bool folds_values(const ModelView& side, int64_t block);
// b_O + W_O b_V, or b_O alone where values are not folded; undefined where there is none of them.
Rounded attention_bias(const ModelView& side, int64_t block);

}  // namespace pare
