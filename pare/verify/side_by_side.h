#pragma once
// Two models on one sequence, layer after layer, with what their heads attend to: the one thing inside them that no
// change of basis touches.

#include "pare/verify/answers.h"

namespace pare {

class SideBySide {
 public:
  // All that is referred to outlives this.
  SideBySide(const ComparedModel& reference, const ComparedModel& other, const Inputs& sequence);

  const BlockwiseRun& reference() const { return first_; }
  const BlockwiseRun& other() const { return second_; }
  int64_t layers() const { return std::min(first_.layers(), second_.layers()); }  // that both have
  int64_t done() const { return first_.done(); }
  std::string tap() const;  // of the layer that run_layer runs next

  struct Attention {
    at::Tensor reference, other;  // probabilities [1, heads, tokens, tokens]
    bool same_heads() const { return reference.sizes() == other.sizes(); }
  };
  Attention run_layer();

 private:
  std::vector<Inputs> sequence_;
  Taps first_taps_, second_taps_;
  BlockwiseRun first_, second_;
};

// The other's heads in the order that fits the reference's best: nothing but their sum is seen behind them.
SideBySide::Attention in_best_order(const SideBySide::Attention& attention);

// |reference - other| at every query that is a token: what padding looks at means nothing.
at::Tensor gap_of(const SideBySide::Attention& attention, const Inputs& sequence);

}  // namespace pare
