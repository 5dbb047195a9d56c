#include "pare/verify/answers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/head.h"
#include "pare/support/error.h"

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
    if (run.done() + 1 == run.layers()) {
      answer.last = run.streams();
    }
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

Comparison compare(const ComparedModel& reference, const Answer& first, const ComparedModel& candidate,
                   const Answer& second, const at::Tensor& targets) {
  Comparison comparison;
  const int64_t columns = head_size(reference.model.architecture);
  if (columns == 0) {
    comparison.rows = compare_rows(first.rows, second.rows);
  } else if (!is_choice(reference.model.architecture)) {
    const auto values = [columns](const ComparedModel& runner, const Answer& answer) {
      const Linear head = head_rows(runner.model, runner.arithmetic, 0, columns);
      return logits(head, runner.model.architecture, answer.rows);
    };
    comparison.rows = compare_rows(values(reference, first), values(candidate, second));
  } else {
    LogitRows collected(targets);
    const int64_t rows = first.rows.size(0), widest = std::max(first.rows.size(1), second.rows.size(1));
    const int64_t step = columns_at_once(rows, widest);
    for (int64_t begin = 0; begin < columns; begin += step) {
      const int64_t count = std::min(step, columns - begin);
      const auto slice = [&](const ComparedModel& runner, const Answer& answer) {
        const Linear head = head_rows(runner.model, runner.arithmetic, begin, count);
        return logits(head, runner.model.architecture, answer.rows);
      };
      const at::Tensor theirs = slice(reference, first);
      collected.add(theirs, slice(candidate, second), begin);
    }
    comparison.rows = collected.finish();
  }
  if (first.pooled.defined()) {
    comparison.pooled = compare_rows(first.pooled, second.pooled);
  }
  return comparison;
}

}  // namespace pare
