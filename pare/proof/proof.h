#pragma once
// What is said of two models that are the same for all inputs: every tensor of the candidate is the reference's, up to
// symmetries that a witness names (witness.h). prover.h comes to it, pare/search/prove.h is the whole way.
//
// The invariant, by induction over the computation: on every stream, reference = Ψ candidate, for every input. It holds
// when each writer obeys A = Ψ B, each reader B = A Ψ, and Ψ commutes with whatever else stands on the stream: nothing
// but matrices, and any Ψ does; RMSNorms, and rotations do; the same for gauges of heads under RoPE and norms
// (allowed_maps.h). All three are checked, of every Ψ as it is: relations element by element against what rounding
// explains, with what Ψ is off its group in each that relies on it. So how a basis was found needs no trust.

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <vector>

#include "pare/checkpoint/model.h"

namespace pare {

enum class How {
  same_numbers,
  same_up_to_rounding,
  gain_folded,
  shift_folded,
  value_bias_folded,
  head_untied,  // or tied
  basis,        // of the stream
  gauge,        // of each head
  reordered,    // neurons, or heads
  scaled,       // each neuron, what it reads against what it writes
  written_out,  // stored in another form
};
const char* word(How how);

// One tensor (or setting) of the candidate that is explained.
struct Relation {
  std::string tensor;  // the reference's canonical name, or the candidate's where only it has one
  How how = How::same_numbers;
  double residual = 0;  // largest |found - expected| over one rounding, of the stored type, of what is expected
};

struct Proof {
  bool identical = false;             // equal Architectures (but for the name), and every tensor holds the same numbers
  bool complete = false;              // every tensor is explained: the same function for all inputs
  std::vector<Relation> relations;    // by name
  std::vector<std::string> gaps;      // what is not explained, and why
  std::set<std::string> unexplained;  // those tensors of the reference
  std::set<std::string> same;         // tensors that hold the same numbers in both, whatever else is explained
  // Rows of tables that break the map which most others obey.
  std::vector<int64_t> strange_tokens, strange_positions, strange_types;
  // And the condition numbers of all bases that are not the identity, and of the worst gauge of each pair of heads'
  // factors, added up.
  double condition = 1;
  // In another basis, the candidate is the reference with every row of its tensors moved by at most this much of its
  // length.
  double moved = 0;
  // Of tensors in float64: the largest change of an entry, in roundings of what is usual beside it; 0 where none is
  // more than a few roundings of the entry itself. A row that makes much of small weights may see what no other does.
  double stretch = 0;
};

// In a basis or a gauge that was fitted, a relation holds where nothing is off by more than so many roundings; where
// there is none, by more than one.
constexpr double most_roundings = 8;

}  // namespace pare
