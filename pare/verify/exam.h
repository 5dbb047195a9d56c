#pragma once
// Both models asked the same, in one or more rounds, and what their answers come to.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pare/verify/answers.h"
#include "pare/verify/judge.h"
#include "pare/verify/self_test.h"

namespace pare {

// Where a row differs most, in units of what it may differ by.
struct WorstRow {
  double excess = 0, error = 0, allowed = 0;
  int64_t sequence = 0;
  bool pooled = false;
  std::string allowed_for;  // why so much
  bool by_error = true;     // else it is the KL or the first choice that is so far, at an error that is not
};

class Exam {
 public:
  // `noise`: the reference, its weights moved by a rounding. What is referred to outlives this.
  Exam(const ComparedModel& reference, const ComparedModel& candidate, const ComparedModel& noise,
       const Standard& standard, uint64_t seed, const Communicator& ranks = {})
      : reference_(reference), candidate_(candidate), noise_(noise), standard_(standard), seed_(seed), ranks_(ranks) {}

  void ask(std::span<const Inputs> inputs);
  // The reference moved by other roundings, asked the same: of each row the larger noise counts from now on.
  void measure_noise(const ComparedModel& noise);
  // The candidate moved by roundings of its own: it was stored in its own basis, perhaps after others that nobody sees,
  // and a rounding there is no difference. From now on rows are held against both noises, as independent ones add up. A
  // candidate has little say in this: its own counts for no more than twice the reference's.
  void measure_own_noise(const ComparedModel& moved);

  const std::vector<Asked>& asked() const { return asked_; }
  const Comparison& compared() const { return compared_; }
  const Comparison& noise() const { return measured_noise_; }

  bool is_equivalent() const;
  bool is_within_noise() const;
  // Of all rows, each by the larger of the two things that it may be: equivalent, or within noise. Where no row is too
  // far off and they are not equivalent, what is told is of the usual row, if that one is.
  WorstRow worst() const;
  // Of each row, and then of what is said of each sequence besides.
  at::Tensor beyond() const;

  Inputs sequence(int64_t number) const;
  // The shortest sequence, and whether its rows, changed so, would still be called what these are called.
  Sample sample() const;
  bool still_holds(const Comparison& changed, bool as_equivalent) const;

 private:
  struct Part {
    const Rows* rows;
    const Rows* noise;  // that they are held against
  };
  std::vector<Part> parts() const;
  const Comparison& held_against() const;
  Allowed equivalence_of(const Rows& noise) const { return equivalence(noise, standard_); }
  Allowed allowed_of(const Rows& noise) const;  // the larger of the two
  std::string reason_of(const Rows& noise, int64_t row) const;
  Allowed noise_limit_of(const Rows& noise) const { return noise_limit(noise, standard_.against); }
  bool may_be_equivalent() const { return candidate_.arithmetic.dtype == at::kDouble; }
  int64_t sample_sequence() const;

  const ComparedModel &reference_, &candidate_, &noise_;
  Standard standard_;
  uint64_t seed_;
  Communicator ranks_;
  std::vector<Asked> asked_;
  std::vector<Answer> truths_;  // to what this rank was asked
  Comparison compared_, measured_noise_;
  std::optional<Comparison> both_noises_;  // of all that was asked until then
};

}  // namespace pare
