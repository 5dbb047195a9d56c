#include "pare/verify/metrics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pare {

namespace {

at::Tensor running_max(const at::Tensor& before, const at::Tensor& now) {
  return before.defined() ? at::maximum(before, now) : now;
}

at::Tensor running_sum(const at::Tensor& before, const at::Tensor& shrink, const at::Tensor& now) {
  return before.defined() ? before * shrink + now : now;
}

double relative_error(const Rows& rows) {
  const double difference = rows.difference.max().item<double>(), spread = rows.spread.max().item<double>();
  return difference == 0 ? 0 : difference / spread;
}

double larger(double a, double b) {  // that NaN is never the smaller one
  return std::isnan(a) || a > b ? a : b;
}

std::optional<double> mean_of(const at::Tensor& values) {
  if (!values.defined()) {
    return std::nullopt;
  }
  return values.mean().item<double>();
}

std::optional<double> mean_of_predicted(const at::Tensor& values, const at::Tensor& predicted) {
  if (!values.defined() || !predicted.any().item<bool>()) {
    return std::nullopt;
  }
  return values.masked_select(predicted).mean().item<double>();
}

}  // namespace

at::Tensor LogitRows::Side::add(const at::Tensor& logits, int64_t first, const at::Tensor& targets) {
  const auto [now, where] = logits.max(1);
  const at::Tensor before = most;
  place = before.defined() ? at::where(now > before, where + first, place) : where + first;
  most = running_max(before, now);
  const at::Tensor shrink = before.defined() ? (before - most).exp() : at::Tensor();
  total = running_sum(total, shrink, (logits - most.unsqueeze(1)).exp().sum(1));
  if (targets.defined()) {
    const at::Tensor column = targets - first;
    const at::Tensor here = (column >= 0) & (column < logits.size(1));
    const at::Tensor value = logits.gather(1, column.clamp(0, logits.size(1) - 1).unsqueeze(1)).squeeze(1);
    const at::Tensor none = at::full_like(value, std::numeric_limits<double>::quiet_NaN());
    target = at::where(here, value, target.defined() ? target : none);
  }
  return shrink;
}

at::Tensor LogitRows::Side::log_sum() const {
  return most + total.log();
}

void LogitRows::add(const at::Tensor& reference, const at::Tensor& candidate, int64_t first) {
  const at::Tensor r = reference.to(at::kDouble), gap = r - candidate.to(at::kDouble);
  difference_ = running_max(difference_, gap.abs().amax(1));
  least_ = running_max(least_, (-r).amax(1));
  sum_ = sum_.defined() ? sum_ + r.sum(1) : r.sum(1);
  columns_ += r.size(1);
  const at::Tensor shrink = reference_.add(r, first, targets_);
  candidate_.add(candidate.to(at::kDouble), first, targets_);
  const at::Tensor weight = (r - reference_.most.unsqueeze(1)).exp();
  mean_gap_ = running_sum(mean_gap_, shrink, (weight * gap).sum(1));
  mean_ratio_ = running_sum(mean_ratio_, shrink, (weight * at::expm1(-gap)).sum(1));
}

Rows LogitRows::finish() const {
  Rows rows;
  rows.difference = difference_;
  const at::Tensor mean = sum_ / columns_;
  rows.spread = at::maximum(reference_.most - mean, mean + least_);
  // KL = E[gap] + log E[exp(-gap)] under the reference. The second form keeps the digits of models that are nearly
  // equal, where the first loses all but those of the logits themselves; the first cannot overflow.
  const at::Tensor gap = mean_gap_ / reference_.total;
  const at::Tensor far = gap - reference_.log_sum() + candidate_.log_sum();
  const at::Tensor near = gap + at::log1p(mean_ratio_ / reference_.total);
  rows.kl = at::where(difference_ < 0.5, near, far).clamp_min(0);
  rows.agrees = (reference_.place == candidate_.place).to(at::kDouble);
  if (targets_.defined()) {
    rows.reference_nll = reference_.log_sum() - reference_.target;
    rows.candidate_nll = candidate_.log_sum() - candidate_.target;
  }
  for (at::Tensor Rows::*field :
       {&Rows::difference, &Rows::spread, &Rows::kl, &Rows::agrees, &Rows::reference_nll, &Rows::candidate_nll}) {
    if ((rows.*field).defined()) {
      rows.*field = (rows.*field).to(at::kCPU);
    }
  }
  return rows;
}

Rows compare_rows(const at::Tensor& reference, const at::Tensor& candidate) {
  const at::Tensor r = reference.to(at::kDouble);
  const at::Tensor centred = r.size(1) > 1 ? r - r.mean(1, true) : r;  // a single value is its own mean
  return {.difference = (r - candidate.to(at::kDouble)).abs().amax(1).to(at::kCPU),
          .spread = centred.abs().amax(1).to(at::kCPU)};
}

Metrics metrics_of(const Comparison& comparison) {
  const Rows& rows = comparison.rows;
  Metrics metrics;
  metrics.max_relative_logit_error = relative_error(rows);
  if (comparison.pooled) {
    metrics.max_relative_logit_error = larger(relative_error(*comparison.pooled), metrics.max_relative_logit_error);
  }
  metrics.mean_kl_nats = mean_of(rows.kl);
  if (rows.kl.defined()) {
    metrics.max_kl_nats = rows.kl.max().item<double>();
  }
  metrics.top1_agreement = mean_of(rows.agrees);
  if (rows.reference_nll.defined()) {
    const at::Tensor predicted = at::isnan(rows.reference_nll).logical_not();
    metrics.reference_nll_nats = mean_of_predicted(rows.reference_nll, predicted);
    metrics.candidate_nll_nats = mean_of_predicted(rows.candidate_nll, predicted);
  }
  return metrics;
}

}  // namespace pare
