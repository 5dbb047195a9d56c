#include "pare/verify/text_statistics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace pare {

WithError mean_of_rows(const at::Tensor& values) {
  const auto count = static_cast<double>(values.numel());
  const double error = count > 1 ? std::sqrt(values.var(0).item<double>() / count) : 0;
  return {values.mean().item<double>(), error};
}

namespace {

// Between the two rows that are nearest, as numpy.quantile has it.
double quantile_of(const at::Tensor& sorted, double share) {
  const double place = share * static_cast<double>(sorted.numel() - 1);
  const auto below = static_cast<int64_t>(place);
  const double low = sorted[below].item<double>();
  const double high = sorted[std::min(below + 1, sorted.numel() - 1)].item<double>();
  return low + (place - static_cast<double>(below)) * (high - low);
}

WithError perplexity_of(const at::Tensor& nats) {
  const WithError mean = mean_of_rows(nats);
  return {std::exp(mean.value), std::exp(mean.value) * mean.error};
}

// The error of a root from that of what is under it.
WithError root_of(const WithError& square) {
  const double root = std::sqrt(square.value);
  return {root, root > 0 ? square.error / (2 * root) : 0};
}

}  // namespace

std::optional<TextStatistics> statistics_of(const Rows& rows) {
  if (!rows.kl.defined() || !rows.reference_nll.defined()) {
    return std::nullopt;
  }
  const at::Tensor predicted = at::isnan(rows.reference_nll).logical_not();
  if (!predicted.any().item<bool>()) {
    return std::nullopt;
  }
  const at::Tensor reference = rows.reference_nll.masked_select(predicted),
                   candidate = rows.candidate_nll.masked_select(predicted), sorted = std::get<0>(rows.kl.sort());
  return TextStatistics{.rows = rows.kl.numel(),
                        .predicted = reference.numel(),
                        .mean_kl = mean_of_rows(rows.kl),
                        .median_kl = quantile_of(sorted, 0.5),
                        .high_kl = quantile_of(sorted, 0.99),
                        .max_kl = sorted[-1].item<double>(),
                        .reference_perplexity = perplexity_of(reference),
                        .candidate_perplexity = perplexity_of(candidate),
                        .nats_more = mean_of_rows(candidate - reference),
                        .rms_probability = root_of(mean_of_rows(((-candidate).exp() - (-reference).exp()).square())),
                        .same_top = mean_of_rows(rows.agrees)};
}

}  // namespace pare
