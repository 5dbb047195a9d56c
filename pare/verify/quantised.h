#pragma once
// Whether one model is the other, quantised: decided by the weights, since what quantising costs hides any mistake from
// whoever compares answers.
//
// A quantiser takes a group of neighbours, chooses a scale and perhaps a minimum, and gives each number a level.
// Whatever it minimises and however it weighs, six things hold. (1) Levels keep the order: rounding to levels is a
// nondecreasing function, so of two numbers of a group the larger one
//     never has the lower level. That holds exactly, in floating point too, and also if the numbers went through
//     another type first.
// (2) A number lies within a step or a few of what is stored, or beyond the ends of what the group can hold: then it
// was
//     clipped (BlockRange in pare/checkpoint/gguf_blocks.h says how far either may be).
// (3) A group can hold no more than four times what is in it: nobody wastes levels on numbers that are not there.
// (4) What is not clipped is half a step off at most, in the root mean square of a tensor.
// (5) On average nothing grows or shrinks by more than quantising explains: the tensor is the reference's times 1, and
//     no more than six tenths of its length are lost.
// (6) Nor does a stretch of neighbours, by more than what is left of it explains.
//
// Weights that are a little off break (1) first: of 32 neighbours some are as near to each other as they are off. Where
// both models are in blocks, (3) cannot be asked, (1) only of the ends between which numbers lie, and the steps of both
// count. What none of the six sees is listed in docs/verify.md.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pare/checkpoint/model_folder.h"

namespace pare {

enum class StoredAs {
  same,       // the same numbers
  rounded,    // to the type that they are stored in
  quantised,  // in blocks
  other,      // none of these
};
const char* word(StoredAs how);

struct ComparedTensor {
  std::string tensor;
  StoredAs how = StoredAs::same;
  int64_t entries = 0;
  int64_t wrong = 0;          // entries, or groups that do not keep the order
  int64_t clipped = 0;        // entries beyond what their group can hold
  double largest_error = 0;   // of an entry that is not clipped, in steps of its group
  double largest_clip = 0;    // of one that is
  double relative_error = 0;  // the length of the difference over that of the reference's
  std::string reason;         // of `other`
};

// Tensors that both models have by the same place and shape, as they are stored: by how much each is off. Reads every
// tensor of both, a slice at a time.
std::vector<ComparedTensor> compare_stored(const ModelFolder& reference, const ModelFolder& candidate);
// Those that are the reference's neither in blocks nor rounded, the furthest off first.
std::vector<const ComparedTensor*> others_of(const std::vector<ComparedTensor>& tensors);

struct Quantisation {
  std::string types;                    // "Q4_K 12, F32 5"
  std::vector<std::string> settings;    // that differ
  std::vector<ComparedTensor> tensors;  // by name
  std::vector<const ComparedTensor*> others() const { return others_of(tensors); }
  bool holds() const { return settings.empty() && others().empty(); }
};

// Nothing where neither model is stored in blocks, or all numbers are the same: then there is a proof.
std::optional<Quantisation> judge_quantisation(const ModelFolder& reference, const ModelFolder& candidate);

}  // namespace pare
