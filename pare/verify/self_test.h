#pragma once
// A check that cannot fail proves nothing: how small a change of the candidate does this one catch?

#include <functional>
#include <string>
#include <vector>

#include "pare/verify/answers.h"

namespace pare {

// One tensor of the candidate, each element of it moved by a fraction of its own size, up or down at random.
struct SelfTest {
  std::string tensor;
  double smallest_caught = 0;  // 0: not even 100 %, so it has no effect on what was asked
  double largest_missed = 0;
};

// One sequence of what was asked, and what the reference said to it.
struct Sample {
  Inputs inputs;
  Answer truth;
  at::Tensor targets;
};

// Disturbs tensors from all over the candidate, of the embedding, of blocks and of the head, chosen by the seed, by
// more and more from `smallest` up to 100 %, and asks whether `caught`. VerificationFailed when nothing ever is.
std::vector<SelfTest> test_check(const ComparedModel& reference, const ComparedModel& candidate, const Sample& sample,
                                 double smallest, uint64_t seed, const std::function<bool(const Comparison&)>& caught);

}  // namespace pare
