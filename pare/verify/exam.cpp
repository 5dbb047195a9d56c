#include "pare/verify/exam.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "pare/support/error.h"
#include "pare/support/mapped.h"
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

// Independent errors add up like this. Of the second no row counts for more than twice what is usual, or its own, in
// the first: whoever wrote the candidate could make that as large as he liked.
at::Tensor added_up(const at::Tensor& first, const at::Tensor& second) {
  constexpr double most_times = 2;
  const at::Tensor known = at::nan_to_num(first, 0, 0);
  const at::Tensor most = most_times * at::maximum(known, known.median());
  return at::hypot(first, at::minimum(at::nan_to_num(second, 0, 0), most));
}

Rows added_up(const Rows& first, const Rows& second) {
  Rows both = first;
  both.error = added_up(first.error, second.error);
  if (first.kl.defined()) {
    both.kl = added_up(first.kl.sqrt(), second.kl.sqrt()).square();
  }
  return both;
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
  Asked asked = pare::ask(reference_.model.architecture, inputs, reference_.arithmetic.device, ranks_);
  int64_t layers = 0;
  for (const ComparedModel* model : {&reference_, &candidate_, &noise_}) {
    layers += std::ssize(layer_blocks(model->model.architecture));
  }
  Progress progress("verifying", static_cast<uint64_t>(layers));
  const auto advance = [&progress] { progress.advance(); };
  Answer truth = answer_of(reference_, asked, advance);
  const Answer answer = answer_of(candidate_, asked, advance), noise = answer_of(noise_, asked, advance);
  const std::array<Said, 2> others = {Said{candidate_, answer}, Said{noise_, noise}};
  std::vector<Comparison> found = compare({reference_, truth}, others, asked, seed_);
  append(compared_, std::move(found[0]));
  append(measured_noise_, std::move(found[1]));
  both_noises_.reset();
  asked_.push_back(std::move(asked));
  truths_.push_back(std::move(truth));
}

void Exam::measure_noise(const ComparedModel& noise) {
  Comparison all;
  for (size_t i = 0; i < asked_.size(); ++i) {
    const Answer answer = answer_of(noise, asked_[i], [] {});
    const std::array<Said, 1> other = {Said{noise, answer}};
    append(all, std::move(compare({reference_, truths_[i]}, other, asked_[i], seed_)[0]));
  }
  take_larger(measured_noise_.rows, all.rows);
  if (all.pooled) {
    take_larger(*measured_noise_.pooled, *all.pooled);
  }
}

void Exam::measure_own_noise(const ComparedModel& moved) {
  Comparison all;
  for (const Asked& asked : asked_) {
    const Answer truth = answer_of(candidate_, asked, [] {}), answer = answer_of(moved, asked, [] {});
    const std::array<Said, 1> other = {Said{moved, answer}};
    append(all, std::move(compare({candidate_, truth}, other, asked, seed_)[0]));
  }
  both_noises_ = Comparison{.rows = added_up(measured_noise_.rows, all.rows)};
  if (all.pooled) {
    both_noises_->pooled = added_up(*measured_noise_.pooled, *all.pooled);
  }
}

const Comparison& Exam::held_against() const {
  return both_noises_ ? *both_noises_ : measured_noise_;
}

std::vector<Exam::Part> Exam::parts() const {
  const Comparison& noise = held_against();
  std::vector<Part> parts = {{&compared_.rows, &noise.rows}};
  if (compared_.pooled) {
    parts.push_back({&*compared_.pooled, &*noise.pooled});
  }
  return parts;
}

// NaN compares as false: what is not a number is different.
bool Exam::is_equivalent() const {
  const std::vector<Part> all = parts();
  return may_be_equivalent() && std::ranges::all_of(all, [this](const Part& part) {
           return largest(excess(*part.rows, equivalence_of(*part.noise))) <= 1;
         });
}

bool Exam::is_within_noise() const {
  const std::vector<Part> all = parts();
  return std::ranges::all_of(all, [this](const Part& part) {
    return largest(excess(*part.rows, noise_limit_of(*part.noise))) <= 1 &&
           usual_rows(*part.rows, *part.noise).excess <= 1;
  });
}

Allowed Exam::allowed_of(const Rows& noise) const {
  const Allowed near = noise_limit_of(noise);
  return may_be_equivalent() ? either(near, equivalence_of(noise)) : near;
}

at::Tensor Exam::beyond() const {
  return at::cat(mapped(parts(), [this](const Part& part) { return excess(*part.rows, allowed_of(*part.noise)); }));
}

std::string Exam::reason_of(const Rows& noise, int64_t row) const {
  const bool by_noise =
      !may_be_equivalent() || (noise_limit_of(noise).error[row] >= equivalence_of(noise).error[row]).item<bool>();
  return by_noise ? noise_words(standard_.against) : equivalence_words(standard_);
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
               .pooled = part.rows != &compared_.rows,
               .allowed_for = reason_of(*part.noise, row)};
    }
  }
  worst.by_error = worst.excess == 0 || !(worst.error / worst.allowed < worst.excess);
  if (worst.excess <= 1 && !is_equivalent()) {
    for (const Part& part : parts()) {
      const UsualRows usual = usual_rows(*part.rows, *part.noise);
      if (usual.excess > 1 && usual.excess > worst.excess) {
        worst.excess = usual.excess;
        worst.error = usual.error;
        worst.allowed = usual.allowed;
        worst.allowed_for = "twice the noise of the usual row, or of nine of ten";
        worst.by_error = usual.by_error;
      }
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
  const at::Tensor rows = at::nonzero(asked.sequence == number).flatten();
  const at::Tensor own = at::nonzero(asked.own_rows.of(asked.sequence) == number).flatten().to(truth.rows.device());
  Sample sample{.inputs = sequence_of(asked, number),
                .truth = {.rows = asked.gathered(truth.rows.index_select(0, own))}};
  if (truth.pooled.defined()) {  // a sequence is in one piece
    const int64_t place = number - asked.own_sequences.first, here = own.size(0) > 0 ? 1 : 0;
    sample.truth.pooled = asked.gathered(truth.pooled.narrow(0, here * place, here));
  }
  if (asked.targets.defined()) {
    sample.targets = asked.targets.index_select(0, rows.to(asked.targets.device()));
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
  const Comparison& noise = held_against();
  return holds(changed.rows, noise.rows, rows) &&
         (!changed.pooled || holds(*changed.pooled, *noise.pooled, at::full({1}, number, at::kLong)));
}

}  // namespace pare
