#include "pare/verify/metrics.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace pare {

namespace {

constexpr double smallest_spread = 1.0 / 64;  // of the usual row's
constexpr double medians_to_the_end = 6;      // four standard deviations, for normally distributed numbers
constexpr double common_part = 1.0 / 1024;    // of a value's own size

constexpr at::Tensor Rows::*fields[] = {&Rows::error,  &Rows::size,          &Rows::kl,           &Rows::agrees,
                                        &Rows::regret, &Rows::reference_nll, &Rows::candidate_nll};

at::Tensor running_max(const at::Tensor& before, const at::Tensor& now) {
  return before.defined() ? at::maximum(before, now) : now;
}

at::Tensor running_sum(const at::Tensor& before, const at::Tensor& shrink, const at::Tensor& now) {
  return before.defined() ? before * shrink + now : now;
}

// Of each row; between the middle two where their number is even.
at::Tensor medians(const at::Tensor& values) {
  const at::Tensor sorted = std::get<0>(values.sort(1));
  const int64_t count = values.size(1);
  return (sorted.select(1, (count - 1) / 2) + sorted.select(1, count / 2)) / 2;
}

// The largest difference of each row, each over its own scale. No difference is none, also where there is no scale.
at::Tensor largest_error(const at::Tensor& reference, const at::Tensor& gap, const Scales& scales) {
  const at::Tensor own = at::maximum((reference - scales.center.unsqueeze(1)).abs(), reference.abs() * common_part);
  const at::Tensor scale = at::maximum(own, scales.spread.unsqueeze(1));
  return at::where(gap == 0, 0.0, gap.abs() / scale).amax(1);
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

Rows on_cpu(Rows rows) {
  for (at::Tensor Rows::*field : fields) {
    if ((rows.*field).defined()) {
      rows.*field = (rows.*field).to(at::kCPU);
    }
  }
  return rows;
}

}  // namespace

double largest(const at::Tensor& values) {
  return values.numel() == 0 ? 0 : values.max().item<double>();
}

Scales scales_of(const at::Tensor& sample, bool choice, const Gather& all_rows) {
  const at::Tensor values = sample.to(at::kDouble);
  const bool centred = choice && values.size(1) > 1;  // a single value is measured by its own size
  Scales scales;
  scales.center = centred ? medians(values) : at::zeros({values.size(0)}, values.options());
  const at::Tensor spread = medians_to_the_end * medians((values - scales.center.unsqueeze(1)).abs());
  const at::Tensor all = all_rows ? all_rows(spread) : spread;
  const at::Tensor varied = all.masked_select(all > 0);  // rows without any say nothing of what is usual
  scales.spread = varied.numel() == 0 ? spread : at::maximum(spread, smallest_spread * medians(varied.unsqueeze(0)));
  return scales;
}

Rows joined(const Rows& first, const Rows& second) {
  Rows both = first;
  for (at::Tensor Rows::*field : fields) {
    if ((both.*field).defined()) {
      both.*field = at::cat({first.*field, second.*field});
    }
  }
  return both;
}

Rows gathered(const Rows& own, const Gather& all_rows) {
  std::vector<at::Tensor> columns;  // one exchange for all of them
  for (at::Tensor Rows::*field : fields) {
    if ((own.*field).defined()) {
      columns.push_back(own.*field);
    }
  }
  const at::Tensor all = all_rows(at::stack(columns, 1));
  Rows rows = own;
  int64_t column = 0;
  for (at::Tensor Rows::*field : fields) {
    if ((own.*field).defined()) {
      rows.*field = all.select(1, column++).contiguous();
    }
  }
  return rows;
}

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
  const at::Tensor r = reference.to(at::kDouble), c = candidate.to(at::kDouble), gap = r - c;
  error_ = running_max(error_, largest_error(r, gap, scales_));
  widest_gap_ = running_max(widest_gap_, gap.abs().amax(1));
  const at::Tensor shrink = reference_.add(r, first, targets_);
  const at::Tensor before = candidate_.place;
  candidate_.add(c, first, targets_);
  const at::Tensor column = (candidate_.place - first).clamp_min(0).unsqueeze(1);
  const at::Tensor value = r.gather(1, column).squeeze(1);
  chosen_ = before.defined() ? at::where(candidate_.place == before, chosen_, value) : value;
  const at::Tensor weight = (r - reference_.most.unsqueeze(1)).exp();
  mean_gap_ = running_sum(mean_gap_, shrink, (weight * gap).sum(1));
  mean_ratio_ = running_sum(mean_ratio_, shrink, (weight * at::expm1(-gap)).sum(1));
}

Rows LogitRows::finish() const {
  Rows rows;
  rows.error = error_;
  rows.size = at::maximum(scales_.spread, reference_.most - scales_.center);
  // KL = E[gap] + log E[exp(-gap)] under the reference. The second form keeps the digits of models that are nearly
  // equal, where the first loses all but those of the logits themselves; the first cannot overflow.
  const at::Tensor gap = mean_gap_ / reference_.total;
  const at::Tensor far = gap - reference_.log_sum() + candidate_.log_sum();
  const at::Tensor near = gap + at::log1p(mean_ratio_ / reference_.total);
  rows.kl = at::where(widest_gap_ < 0.5, near, far).clamp_min(0);
  rows.agrees = (reference_.place == candidate_.place).to(at::kDouble);
  rows.regret = reference_.most - chosen_;
  if (targets_.defined()) {
    rows.reference_nll = reference_.log_sum() - reference_.target;
    rows.candidate_nll = candidate_.log_sum() - candidate_.target;
  }
  return on_cpu(std::move(rows));
}

Rows compare_rows(const at::Tensor& reference, const at::Tensor& candidate, const Gather& all_rows) {
  const at::Tensor r = reference.to(at::kDouble);
  const Scales scales = scales_of(r, false, all_rows);
  Rows rows;
  rows.error = largest_error(r, r - candidate.to(at::kDouble), scales);
  rows.size = scales.spread;
  return on_cpu(std::move(rows));
}

Metrics metrics_of(const Comparison& comparison) {
  const Rows& rows = comparison.rows;
  Metrics metrics;
  metrics.max_relative_logit_error = largest(rows.error);
  if (comparison.pooled) {
    metrics.max_relative_logit_error = larger(largest(comparison.pooled->error), metrics.max_relative_logit_error);
  }
  metrics.mean_kl_nats = mean_of(rows.kl);
  if (rows.kl.defined()) {
    metrics.max_kl_nats = largest(rows.kl);
  }
  metrics.top1_agreement = mean_of(rows.agrees);
  if (rows.reference_nll.defined()) {
    const at::Tensor predicted = at::isnan(rows.reference_nll).logical_not();
    metrics.reference_nll_nats = mean_of_predicted(rows.reference_nll, predicted);
    metrics.candidate_nll_nats = mean_of_predicted(rows.candidate_nll, predicted);
  }
  return metrics;
}

std::optional<std::string> warning_of_guessing(std::string_view whose, double nats, int64_t choices) {
  const double guessed = std::log(static_cast<double>(choices));
  if (!(nats > surely_guessing * guessed)) {  // nor of what is not a number
    return std::nullopt;
  }
  return fmt::format(
      "{} is worse than guessing on these tokens: {:.4g} nats a token, where guessing takes ln {} = {:.2f}. Are they "
      "the tokens that it was trained on? Check which tokenizer made them (--text takes the model's own), and which "
      "token its texts begin with",
      whose, nats, choices, guessed);
}

}  // namespace pare
