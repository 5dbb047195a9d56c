#pragma once
// How far two models' predictions are apart on a text, as people who quantise models state it. For people to read; no
// verdict rests on it.

#include <cstdint>
#include <optional>

#include "pare/verify/metrics.h"

namespace pare {

// An error is one standard error, with rows counted as independent of each other.
struct WithError {
  double value = 0, error = 0;
};

struct TextStatistics {
  int64_t rows = 0, predicted = 0;                // with a next token
  WithError mean_kl;                              // KL(reference, candidate), nats
  double median_kl = 0, high_kl = 0, max_kl = 0;  // high: 99 of 100 rows are below
  WithError reference_perplexity, candidate_perplexity;
  WithError nats_more;        // candidate less reference, row by row, per token
  WithError rms_probability;  // of the change of the right token's probability
  WithError same_top;         // share of rows with the same first choice
};

WithError mean_of_rows(const at::Tensor& values);
// Nothing where rows are no choice, or none of them has a next token.
std::optional<TextStatistics> statistics_of(const Rows& rows);

}  // namespace pare
