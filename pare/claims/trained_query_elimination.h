#pragma once
// The claim query-elimination in its parts: what is compared, under which conditions, and what that comes to.

#include "pare/claims/trained.h"

namespace pare {

// What is compared; an id is a part of a variant's name.
struct QueryForm {
  const char *id, *words;
};

namespace query_form {
inline constexpr QueryForm baseline{"baseline", "baseline"};
inline constexpr QueryForm no_query{"no-query", "W_Q = I"};
inline constexpr QueryForm halved{"no-query-half", "W_Q = I, scale / 2"};
inline constexpr QueryForm doubled{"no-query-double", "W_Q = I, scale x 2"};
inline constexpr QueryForm larger{"no-query-larger-mlp", "W_Q = I, MLP of 4.5 d"};
inline constexpr QueryForm larger_halved{"no-query-half-larger-mlp", "W_Q = I, scale / 2, MLP of 4.5 d"};
inline constexpr QueryForm smaller_mlp{"smaller-mlp", "MLP of 3.5 d"};
inline constexpr QueryForm smaller_width{"smaller-width", "smaller d"};
inline constexpr QueryForm no_key{"no-key", "W_K = I"};
inline constexpr QueryForm no_value{"no-value", "W_V = I"};
inline constexpr QueryForm nonlinear{"nonlinear-query", "Q = x + N(x)"};
}  // namespace query_form

nlohmann::json query_run(const Trial& trial);  // the baseline as it is usually trained

// Under which forms are held against their baseline again: widths and a vocabulary in half the steps, all that is asked
// of many in short runs.
struct QueryCondition {
  std::string id, words;
  nlohmann::json config;                     // of its baseline
  std::vector<double> rates;                 // the likeliest first
  bool of_width = false, of_tokens = false;  // a row of the table by width, by tokens
};
std::vector<QueryCondition> query_conditions(const Trial& trial);

std::string query_variant(const QueryForm& form, const std::string& condition);  // "": the usual one

std::vector<PlannedRun> plan_query_elimination(const Trial& trial);
Outcome judge_query_elimination(const Trial& trial, const TrainedRuns& runs);

}  // namespace pare
