#include "pare/verify/exam.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "pare/support/error.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

void append(Comparison& all, Comparison&& more) {
  if (!all.rows.error.defined()) {
    all = std::move(more);
    return;
  }
  all.rows = joined(all.rows, more.rows);
  if (all.pooled) {
    all.pooled = joined(*all.pooled, *more.pooled);
  }
}

void take_larger(Rows& noise, const Rows& other) {
  noise.error = at::maximum(noise.error, other.error);
  if (noise.kl.defined()) {
    noise.kl = at::maximum(noise.kl, other.kl);
  }
}

// The larger of two limits, row by row.
Allowed either(const Allowed& a, const Allowed& b) {
  Allowed both{at::maximum(a.error, b.error), {}};
  if (a.root_kl.defined()) {
    both.root_kl = at::maximum(a.root_kl, b.root_kl);
  }
  return both;
}

}  // namespace

void Exam::ask(std::span<const Inputs> inputs) {
  Asked asked = pare::ask(reference_.model.architecture, inputs, reference_.arithmetic.device);
  int64_t layers = 0;
  for (const ComparedModel* model : {&reference_, &candidate_, &noise_}) {
    layers += std::ssize(layer_blocks(model->model.architecture));
  }
  Progress progress("verifying", static_cast<uint64_t>(layers));
  const auto advance = [&progress] { progress.advance(); };
  Answer truth = answer_of(reference_, asked, advance);
  const Answer answer = answer_of(candidate_, asked, advance), noise = answer_of(noise_, asked, advance);
  const std::array<Said, 2> others = {Said{candidate_, answer}, Said{noise_, noise}};
  std::vector<Comparison> found = compare({reference_, truth}, others, asked.targets, seed_);
  append(compared_, std::move(found[0]));
  append(measured_noise_, std::move(found[1]));
  asked_.push_back(std::move(asked));
  truths_.push_back(std::move(truth));
}

void Exam::measure_noise(const ComparedModel& noise) {
  Comparison all;
  for (size_t i = 0; i < asked_.size(); ++i) {
    const Answer answer = answer_of(noise, asked_[i], [] {});
    const std::array<Said, 1> other = {Said{noise, answer}};
    append(all, std::move(compare({reference_, truths_[i]}, other, asked_[i].targets, seed_)[0]));
  }
  take_larger(measured_noise_.rows, all.rows);
  if (all.pooled) {
    take_larger(*measured_noise_.pooled, *all.pooled);
  }
}

std::vector<Exam::Part> Exam::parts() const {
  std::vector<Part> parts = {{&compared_.rows, &measured_noise_.rows}};
  if (compared_.pooled) {
    parts.push_back({&*compared_.pooled, &*measured_noise_.pooled});
  }
  return parts;
}

// NaN compares as false: what is not a number is different.
bool Exam::is_equivalent() const {
  const std::vector<Part> all = parts();
  return may_be_equivalent() && std::all_of(all.begin(), all.end(), [this](const Part& part) {
           return largest(excess(*part.rows, equivalence_of(*part.noise))) <= 1;
         });
}

bool Exam::is_within_noise() const {
  const std::vector<Part> all = parts();
  return std::all_of(all.begin(), all.end(), [this](const Part& part) {
    return largest(excess(*part.rows, noise_limit_of(*part.noise))) <= 1 && usual_excess(*part.rows, *part.noise) <= 1;
  });
}

Allowed Exam::allowed_of(const Rows& noise) const {
  const Allowed near = noise_limit_of(noise);
  return may_be_equivalent() ? either(near, equivalence_of(noise)) : near;
}

at::Tensor Exam::beyond() const {
  std::vector<at::Tensor> all;
  for (const Part& part : parts()) {
    all.push_back(excess(*part.rows, allowed_of(*part.noise)));
  }
  return at::cat(all);
}

WorstRow Exam::worst() const {
  WorstRow worst{.excess = -1};
  for (const Part& part : parts()) {
    const Allowed allowed = allowed_of(*part.noise);
    const at::Tensor beyond = excess(*part.rows, allowed);
    const int64_t row = beyond.argmax().item<int64_t>();
    if (beyond[row].item<double>() > worst.excess) {
      worst = {.excess = beyond[row].item<double>(),
               .error = part.rows->error[row].item<double>(),
               .allowed = allowed.error[row].item<double>(),
               .sequence = row,
               .pooled = part.rows != &compared_.rows};
    }
  }
  if (worst.excess <= 1 && !is_equivalent()) {
    for (const Part& part : parts()) {
      worst.excess = std::max(worst.excess, usual_excess(*part.rows, *part.noise));
    }
  }
  if (!worst.pooled) {  // from a row to its sequence
    int64_t row = worst.sequence, before = 0;
    for (const Asked& asked : asked_) {
      if (row < asked.sequence.size(0)) {
        worst.sequence = before + asked.sequence[row].item<int64_t>();
        break;
      }
      row -= asked.sequence.size(0);
      before += asked.sequences;
    }
  }
  return worst;
}

Inputs Exam::sequence(int64_t number) const {
  for (const Asked& asked : asked_) {
    if (number < asked.sequences) {
      return sequence_of(asked, number);
    }
    number -= asked.sequences;
  }
  PARE_UNREACHABLE("no such sequence");
}

// Of the first round: the shortest one that attention has something to choose in.
int64_t Exam::sample_sequence() const {
  const Asked& asked = asked_.front();
  const at::Tensor lengths = at::bincount(asked.sequence, {}, asked.sequences);
  return at::where(lengths > 1, lengths, lengths.max() + 1).argmin().item<int64_t>();
}

Sample Exam::sample() const {
  const Asked& asked = asked_.front();
  const Answer& truth = truths_.front();
  const int64_t number = sample_sequence();
  const at::Tensor rows = at::nonzero(asked.sequence == number).flatten().to(truth.rows.device());
  Sample sample{.inputs = sequence_of(asked, number), .truth = {.rows = truth.rows.index_select(0, rows)}};
  if (truth.pooled.defined()) {
    sample.truth.pooled = truth.pooled.narrow(0, number, 1);
  }
  if (asked.targets.defined()) {
    sample.targets = asked.targets.index_select(0, rows);
  }
  return sample;
}

bool Exam::still_holds(const Comparison& changed, bool as_equivalent) const {
  const int64_t number = sample_sequence();
  const auto holds = [&](const Rows& rows, const Rows& noise, const at::Tensor& places) {
    const Allowed all = as_equivalent ? equivalence_of(noise) : noise_limit_of(noise);
    Allowed allowed{all.error.index_select(0, places), {}};
    if (all.root_kl.defined()) {
      allowed.root_kl = all.root_kl.index_select(0, places);
    }
    return largest(excess(rows, allowed)) <= 1;
  };
  const at::Tensor rows = at::nonzero(asked_.front().sequence == number).flatten();
  return holds(changed.rows, measured_noise_.rows, rows) &&
         (!changed.pooled || holds(*changed.pooled, *measured_noise_.pooled, at::full({1}, number, at::kLong)));
}

}  // namespace pare
