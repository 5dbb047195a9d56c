#pragma once
// How far two models' answers are apart. Logits come in slices of the vocabulary, so that nobody has to hold them all.

#include <ATen/core/Tensor.h>

#include <optional>

namespace pare {

struct Metrics {
  double max_relative_logit_error = 0;  // max |difference| / max |reference - its row's mean|, over everything compared
  // Absent where they mean nothing: an encoder has no logits, question answering and a single class no choice among
  // those of a row, and only a causal model predicts the next token.
  std::optional<double> mean_kl_nats, max_kl_nats;  // KL(reference, candidate) of a row, summed over the vocabulary
  std::optional<double> top1_agreement;
  std::optional<double> reference_nll_nats, candidate_nll_nats;  // of the next token
};

// One number for each compared row, float64 on the CPU. A row is a token, or a sequence where it has one answer.
struct Rows {
  at::Tensor difference, spread;
  at::Tensor kl, agrees;                    // undefined where a row is no choice
  at::Tensor reference_nll, candidate_nll;  // undefined where nothing is predicted, NaN where a row has no next token
};

// Collects rows of logits from slices of their columns.
class LogitRows {
 public:
  // `targets` int64 [rows]: the next token, or -1; undefined: nothing is predicted.
  explicit LogitRows(at::Tensor targets = {}) : targets_(std::move(targets)) {}

  // Columns from `first` on, [rows, columns] in any float type. Every column once.
  void add(const at::Tensor& reference, const at::Tensor& candidate, int64_t first);
  Rows finish() const;

 private:
  struct Side {  // of the logits so far: a running log-sum-exp, the largest and where, and that of the target
    at::Tensor most, total, place, target;
    at::Tensor add(const at::Tensor& logits, int64_t first, const at::Tensor& targets);  // what old sums shrink by
    at::Tensor log_sum() const;
  };
  at::Tensor targets_, difference_, least_, sum_;
  at::Tensor mean_gap_, mean_ratio_;  // expectations under the reference, not divided by its total yet
  Side reference_, candidate_;
  int64_t columns_ = 0;
};

// Rows that are not logits, compared as they are.
Rows compare_rows(const at::Tensor& reference, const at::Tensor& candidate);

// Everything that two models were asked: rows of logits or hidden states, and what is said of a sequence besides.
struct Comparison {
  Rows rows;
  std::optional<Rows> pooled;  // of another size than the hidden states, so with an error of its own
};

Metrics metrics_of(const Comparison& comparison);

}  // namespace pare
