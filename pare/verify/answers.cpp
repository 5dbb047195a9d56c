#include "pare/verify/answers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/head.h"
#include "pare/support/error.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

constexpr int64_t slice_bytes = 16 << 20;

at::Tensor real_tokens(const Architecture& a, const Inputs& inputs) {  // bool [batch, tokens]
  if (inputs.mask.defined()) {
    return inputs.mask.to(at::kCPU);
  }
  return at::ones({batch_size(inputs), inputs.ids.defined() ? inputs.ids.size(1) : patch_positions(a)}, at::kBool);
}

// The token after each real token, -1 where a sequence ends.
at::Tensor next_tokens(const at::Tensor& ids, const at::Tensor& real) {
  const at::Tensor next = at::full_like(ids, -1);
  const int64_t last = ids.size(1) - 1;
  next.narrow(1, 0, last).copy_(ids.narrow(1, 1, last).masked_fill(real.narrow(1, 1, last).logical_not(), -1));
  return next.masked_select(real);
}

// So many columns that neither the head's slice nor the logits of all rows take much.
int64_t columns_at_once(int64_t rows, int64_t width) {
  return std::max<int64_t>(1, slice_bytes / (8 * std::max<int64_t>({rows, width, 1})));
}

}  // namespace

Asked ask(const Architecture& a, std::span<const Inputs> inputs, at::Device device) {
  PARE_CHECK(!inputs.empty(), "nothing to ask");
  Asked asked;
  std::vector<at::Tensor> sequence, targets;
  for (const Inputs& input : inputs) {
    asked.inputs.push_back(moved(input, device));
    const at::Tensor real = real_tokens(a, input);
    const int64_t batch = real.size(0);
    at::Tensor number = at::arange(asked.sequences, asked.sequences + batch, at::kLong);
    if (!answers_sequences(a)) {
      number = number.unsqueeze(1).expand_as(real).masked_select(real);
    }
    sequence.push_back(number);
    if (a.task == Task::causal_lm && input.ids.defined()) {
      targets.push_back(next_tokens(input.ids.to(at::kCPU), real));
    }
    asked.sequences += batch;
    asked.tokens += real.sum().item<int64_t>();
  }
  asked.sequence = at::cat(sequence);
  if (!targets.empty()) {
    asked.targets = at::cat(targets).to(device);
  }
  return asked;
}

Inputs sequence_of(const Asked& asked, int64_t s) {
  for (const Inputs& input : asked.inputs) {
    if (s >= batch_size(input)) {
      s -= batch_size(input);
      continue;
    }
    return rows_of(input, s, 1);
  }
  PARE_UNREACHABLE("no such sequence");
}

at::Tensor rows_of(const Features& features, const Inputs& inputs) {
  const at::Tensor& all = features.x.defined() ? features.x : features.hidden;
  if (all.dim() == 2) {  // one answer for each sequence
    return all;
  }
  const at::Tensor flat = all.flatten(0, 1);
  return inputs.mask.defined() ? flat.index_select(0, at::nonzero(inputs.mask.flatten()).flatten()) : flat;
}

at::Tensor pooled_of(const Features& features) {
  return features.pooled.defined() ? features.pooled : features.sequence_logits;
}

Answer answer_of(const ComparedModel& runner, const Asked& asked, const std::function<void()>& advance) {
  BlockwiseRun run(runner.model, runner.arithmetic, asked.inputs);
  Answer answer;
  while (run.done() < run.layers()) {
    run.run_layer();
    advance();
  }
  std::vector<at::Tensor> rows, pooled;
  const std::vector<Features> features = run.finish();
  for (size_t i = 0; i < features.size(); ++i) {
    rows.push_back(rows_of(features[i], asked.inputs[i]));
    if (pooled_of(features[i]).defined()) {
      pooled.push_back(pooled_of(features[i]));
    }
  }
  answer.rows = at::cat(rows);
  if (!pooled.empty()) {
    answer.pooled = at::cat(pooled);
  }
  return answer;
}

namespace {

Linear head_of(const Said& said, int64_t begin, int64_t count) {
  return head_rows(said.model.model, said.model.arithmetic, begin, count);
}

at::Tensor logits_of(const Said& said, const Linear& head) {
  return logits(head, said.model.model.architecture, said.answer.rows);
}

at::Tensor logits_of(const Said& said, int64_t begin, int64_t count) {
  return logits_of(said, head_of(said, begin, count));
}

// From some columns: eight stretches of them, evenly apart, so that each can be read at once.
Scales scales_of_logits(const Said& reference, int64_t columns, uint64_t seed) {
  constexpr int64_t stretches = 8, together = 32;
  if (columns <= stretches * together) {
    return scales_of(logits_of(reference, 0, columns), true);
  }
  const int64_t apart = columns / stretches;
  const int64_t first = static_cast<int64_t>(seed % static_cast<uint64_t>(apart - together + 1));
  std::vector<at::Tensor> sample;
  for (int64_t s = 0; s < stretches; ++s) {
    sample.push_back(logits_of(reference, s * apart + first, together));
  }
  return scales_of(at::cat(sample, 1), true);
}

std::vector<Rows> compare_choices(const Said& reference, std::span<const Said> others, const at::Tensor& targets,
                                  int64_t columns, uint64_t seed) {
  const Scales scales = scales_of_logits(reference, columns, seed);
  std::vector<LogitRows> collected(others.size(), LogitRows(scales, targets));
  int64_t widest = reference.answer.rows.size(1);
  for (const Said& other : others) {
    widest = std::max(widest, other.answer.rows.size(1));
  }
  const int64_t step = columns_at_once(reference.answer.rows.size(0), widest);
  for (int64_t begin = 0; begin < columns; begin += step) {
    const int64_t count = std::min(step, columns - begin);
    const at::Tensor theirs = logits_of(reference, begin, count);
    Linear head;
    for (size_t i = 0; i < others.size(); ++i) {
      if (i == 0 || &others[i].model != &others[i - 1].model) {  // one model may have said several things
        head = head_of(others[i], begin, count);
      }
      collected[i].add(theirs, logits_of(others[i], head), begin);
    }
  }
  return mapped(collected, &LogitRows::finish);
}

}  // namespace

std::vector<Comparison> compare(const Said& reference, std::span<const Said> others, const at::Tensor& targets,
                                uint64_t seed) {
  const Architecture& a = reference.model.model.architecture;
  const int64_t columns = head_size(a);
  std::vector<Comparison> comparisons(others.size());
  if (columns > 0 && is_choice(a)) {
    std::vector<Rows> rows = compare_choices(reference, others, targets, columns, seed);
    for (size_t i = 0; i < others.size(); ++i) {
      comparisons[i].rows = std::move(rows[i]);
    }
  } else {
    const auto values = [columns](const Said& said) {
      return columns == 0 ? said.answer.rows : logits_of(said, 0, columns);
    };
    const at::Tensor theirs = values(reference);
    for (size_t i = 0; i < others.size(); ++i) {
      comparisons[i].rows = compare_rows(theirs, values(others[i]));
    }
  }
  for (size_t i = 0; i < others.size() && reference.answer.pooled.defined(); ++i) {
    comparisons[i].pooled = compare_rows(reference.answer.pooled, others[i].answer.pooled);
  }
  return comparisons;
}

Comparison compare_with(const Said& reference, const GivenAnswers& given, const at::Tensor& targets, uint64_t seed) {
  const Architecture& a = reference.model.model.architecture;
  const int64_t columns = head_size(a);
  Comparison comparison;
  if (columns > 0 && is_choice(a)) {
    LogitRows collected(scales_of_logits(reference, columns, seed), targets);
    const int64_t step = columns_at_once(given.rows.size(0), reference.answer.rows.size(1));
    for (int64_t begin = 0; begin < columns; begin += step) {
      const int64_t count = std::min(step, columns - begin);
      const at::Tensor theirs = logits_of(reference, begin, count);
      collected.add(theirs, given.rows.narrow(1, begin, count).to(theirs.device()), begin);
    }
    comparison.rows = collected.finish();
  } else {
    const at::Tensor theirs = columns == 0 ? reference.answer.rows : logits_of(reference, 0, columns);
    comparison.rows = compare_rows(theirs, given.rows.to(theirs.device()));
  }
  if (given.pooled.defined()) {
    comparison.pooled = compare_rows(reference.answer.pooled, given.pooled.to(reference.answer.pooled.device()));
  }
  return comparison;
}

}  // namespace pare
