#pragma once
// How far two models' answers are apart, row by row. Logits come in slices of the vocabulary, so that nobody has to
// hold them all.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace pare {

struct Metrics {
  double max_relative_logit_error = 0;  // the largest of the rows' errors
  // Absent where they mean nothing: an encoder has no logits, question answering and a single class no choice among
  // those of a row, and only a causal model predicts the next token.
  std::optional<double> mean_kl_nats, max_kl_nats;  // KL(reference, candidate) of a row, summed over the vocabulary
  std::optional<double> top1_agreement;
  std::optional<double> reference_nll_nats, candidate_nll_nats;  // of the next token
};

// What the differences of each row are measured by; known from the reference alone. A difference in column j counts
// over the largest of the row's spread, that column's own distance from the centre, and its size / 1024. So a column
// that is huge (a bias of -1e13 on padding) excuses nothing but itself, and what all logits have in common counts for
// no more than rounding makes of it.
struct Scales {
  at::Tensor center;  // the median of a row; zero where rows are not a choice among columns
  at::Tensor spread;  // six times the median distance from it, at least 1/64 of what is usual among rows that have any
};
// What is known of some rows, with the rows that others have of it.
using Gather = std::function<at::Tensor(const at::Tensor& own)>;
// Medians are of these columns of each row.
Scales scales_of(const at::Tensor& sample, bool choice, const Gather& all_rows = {});

// One number for each compared row, float64 on the CPU. A row is a token, or a sequence where it has one answer.
struct Rows {
  at::Tensor error;                         // the largest difference, each over its scale
  at::Tensor size;                          // the scale of the reference's first choice, or the spread
  at::Tensor kl, agrees;                    // undefined where a row is no choice
  at::Tensor regret;                        // how much less the reference likes the candidate's first choice
  at::Tensor reference_nll, candidate_nll;  // undefined where nothing is predicted, NaN where a row has no next token
};
double largest(const at::Tensor& values);  // 0 of none

Rows joined(const Rows& first, const Rows& second);
Rows gathered(const Rows& own, const Gather& all_rows);

// Collects rows of logits from slices of their columns.
class LogitRows {
 public:
  // `targets` int64 [rows]: the next token, or -1; undefined: nothing is predicted.
  explicit LogitRows(Scales scales, at::Tensor targets = {})
      : scales_(std::move(scales)), targets_(std::move(targets)) {}

  // Columns from `first` on, [rows, columns] in any float type. Every column once.
  void add(const at::Tensor& reference, const at::Tensor& candidate, int64_t first);
  Rows finish() const;

 private:
  struct Side {  // of the logits so far: a running log-sum-exp, the largest and where, and that of the target
    at::Tensor most, total, place, target;
    at::Tensor add(const at::Tensor& logits, int64_t first, const at::Tensor& targets);  // what old sums shrink by
    at::Tensor log_sum() const;
  };
  Scales scales_;
  at::Tensor targets_, error_, widest_gap_;
  at::Tensor chosen_;                 // the reference's value of the candidate's first choice
  at::Tensor mean_gap_, mean_ratio_;  // expectations under the reference, not divided by its total yet
  Side reference_, candidate_;
};

// Rows that are no choice, compared as they are.
Rows compare_rows(const at::Tensor& reference, const at::Tensor& candidate, const Gather& all_rows = {});

// Everything that two models were asked: rows of logits or hidden states, and what is said of a sequence besides.
struct Comparison {
  Rows rows;
  std::optional<Rows> pooled;
};

Metrics metrics_of(const Comparison& comparison);

// A model that was never trained is near ln(choices), and a little above it. Beyond this many times that, one is sure
// of what is wrong: it reads other tokens than it was trained on.
constexpr double surely_guessing = 1.5;

// What to say of that, and what to do about it; nothing where it predicts no worse. `nats` is the mean of
// -log p(next token) over the tokens that `whose` ("the reference") was given.
std::optional<std::string> warning_of_guessing(std::string_view whose, double nats, int64_t choices);

}  // namespace pare
