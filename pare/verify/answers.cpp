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

// Large batches in pieces, so that ranks have something to share out.
std::vector<Inputs> in_pieces(const Architecture& a, std::span<const Inputs> inputs) {
  constexpr int64_t most_tokens = 512;
  std::vector<Inputs> pieces;
  for (const Inputs& input : inputs) {
    const int64_t tokens = input.ids.defined() ? input.ids.size(1) : patch_positions(a), batch = batch_size(input);
    const int64_t step = std::max<int64_t>(1, most_tokens / std::max<int64_t>(1, tokens));
    for (int64_t first = 0; first < batch; first += step) {
      pieces.push_back(step < batch ? rows_of(input, first, std::min(step, batch - first)) : input);
    }
  }
  return pieces;
}

}  // namespace

Asked ask(const Architecture& a, std::span<const Inputs> inputs, at::Device device, const Communicator& ranks) {
  PARE_CHECK(!inputs.empty(), "nothing to ask");
  Asked asked{.ranks = ranks};
  std::vector<at::Tensor> sequence, targets;
  std::vector<double> costs;
  for (const Inputs& input : in_pieces(a, inputs)) {
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
    costs.push_back(static_cast<double>(real.numel()));
  }
  asked.sequence = at::cat(sequence);
  if (!targets.empty()) {
    asked.targets = at::cat(targets).to(device);
  }
  Share own = share_of(costs, ranks);
  asked.counts = own.size() > 0;
  if (!asked.counts) {
    own.first = static_cast<size_t>(std::ranges::min_element(costs) - costs.begin());
    own.end = own.first + 1;
  }
  asked.own_inputs = {static_cast<int64_t>(own.first), static_cast<int64_t>(own.size())};
  for (size_t piece = 0; piece < own.end; ++piece) {
    (piece < own.first ? asked.own_rows.first : asked.own_rows.count) += sequence[piece].size(0);
    (piece < own.first ? asked.own_sequences.first : asked.own_sequences.count) += batch_size(asked.inputs[piece]);
  }
  return asked;
}

at::Tensor Asked::gathered(const at::Tensor& own) const {
  return own.defined() ? gathered_rows(counts ? own : own.narrow(0, 0, 0), ranks) : own;
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
  const std::span<const Inputs> inputs =
      std::span(asked.inputs).subspan(asked.own_inputs.first, asked.own_inputs.count);
  BlockwiseRun run(runner.model, runner.arithmetic, inputs);
  Answer answer;
  while (run.done() < run.layers()) {
    run.run_layer();
    advance();
  }
  std::vector<at::Tensor> rows, pooled;
  const std::vector<Features> features = run.finish();
  for (size_t i = 0; i < features.size(); ++i) {
    rows.push_back(rows_of(features[i], inputs[i]));
    answer.pieces.push_back(rows.back().size(0));
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
  const Architecture& a = said.model.model.architecture;
  if (said.answer.pieces.size() < 2) {
    return logits(head, a, said.answer.rows);
  }
  return at::cat(mapped(said.answer.rows.split_with_sizes(said.answer.pieces),
                        [&](const at::Tensor& rows) { return logits(head, a, rows); }));
}

at::Tensor logits_of(const Said& said, int64_t begin, int64_t count) {
  return logits_of(said, head_of(said, begin, count));
}

// From some columns: eight stretches of them, evenly apart, so that each can be read at once.
Scales scales_of_logits(const Said& reference, int64_t columns, uint64_t seed, const Gather& all_rows) {
  constexpr int64_t stretches = 8, together = 32;
  if (columns <= stretches * together) {
    return scales_of(logits_of(reference, 0, columns), true, all_rows);
  }
  const int64_t apart = columns / stretches;
  const int64_t first = static_cast<int64_t>(seed % static_cast<uint64_t>(apart - together + 1));
  std::vector<at::Tensor> sample;
  for (int64_t s = 0; s < stretches; ++s) {
    sample.push_back(logits_of(reference, s * apart + first, together));
  }
  return scales_of(at::cat(sample, 1), true, all_rows);
}

// The rows at hand, of so many, and how to get the others.
struct Compared {
  at::Tensor targets;
  int64_t rows = 0;
  Gather all_rows = {};
};

Compared own_of(const Asked& asked) {
  Compared own{.targets = asked.own_rows.of(asked.targets), .rows = asked.sequence.size(0)};
  if (!asked.ranks.alone()) {
    own.all_rows = [&asked](const at::Tensor& rows) { return asked.gathered(rows); };
  }
  return own;
}

Comparison gathered(Comparison own, const Gather& all_rows) {
  if (all_rows) {
    own.rows = gathered(own.rows, all_rows);
    if (own.pooled) {
      own.pooled = gathered(*own.pooled, all_rows);
    }
  }
  return own;
}

std::vector<Rows> compare_choices(const Said& reference, std::span<const Said> others, const Compared& compared,
                                  int64_t columns, uint64_t seed) {
  const Scales scales = scales_of_logits(reference, columns, seed, compared.all_rows);
  std::vector<LogitRows> collected(others.size(), LogitRows(scales, compared.targets));
  int64_t widest = reference.answer.rows.size(1);
  for (const Said& other : others) {
    widest = std::max(widest, other.answer.rows.size(1));
  }
  const int64_t step = columns_at_once(compared.rows, widest);
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

std::vector<Comparison> compare_all(const Said& reference, std::span<const Said> others, const Compared& compared,
                                    uint64_t seed) {
  const Architecture& a = reference.model.model.architecture;
  const int64_t columns = head_size(a);
  std::vector<Comparison> comparisons(others.size());
  if (columns > 0 && is_choice(a)) {
    std::vector<Rows> rows = compare_choices(reference, others, compared, columns, seed);
    for (size_t i = 0; i < others.size(); ++i) {
      comparisons[i].rows = std::move(rows[i]);
    }
  } else {
    const auto values = [columns](const Said& said) {
      return columns == 0 ? said.answer.rows : logits_of(said, 0, columns);
    };
    const at::Tensor theirs = values(reference);
    for (size_t i = 0; i < others.size(); ++i) {
      comparisons[i].rows = compare_rows(theirs, values(others[i]), compared.all_rows);
    }
  }
  for (size_t i = 0; i < others.size() && reference.answer.pooled.defined(); ++i) {
    comparisons[i].pooled = compare_rows(reference.answer.pooled, others[i].answer.pooled, compared.all_rows);
  }
  for (Comparison& comparison : comparisons) {
    comparison = gathered(std::move(comparison), compared.all_rows);
  }
  return comparisons;
}

}  // namespace

std::vector<Comparison> compare(const Said& reference, std::span<const Said> others, const Asked& asked,
                                uint64_t seed) {
  return compare_all(reference, others, own_of(asked), seed);
}

std::vector<Comparison> compare(const Said& reference, std::span<const Said> others, const at::Tensor& targets,
                                uint64_t seed) {
  return compare_all(reference, others, {.targets = targets, .rows = reference.answer.rows.size(0)}, seed);
}

Comparison compare_with(const Said& reference, const GivenAnswers& given, const Asked& asked, uint64_t seed) {
  const Architecture& a = reference.model.model.architecture;
  const int64_t columns = head_size(a);
  const Compared own = own_of(asked);
  const at::Tensor answers = asked.own_rows.of(given.rows);
  Comparison comparison;
  if (columns > 0 && is_choice(a)) {
    LogitRows collected(scales_of_logits(reference, columns, seed, own.all_rows), own.targets);
    const int64_t step = columns_at_once(own.rows, reference.answer.rows.size(1));
    for (int64_t begin = 0; begin < columns; begin += step) {
      const int64_t count = std::min(step, columns - begin);
      const at::Tensor theirs = logits_of(reference, begin, count);
      collected.add(theirs, answers.narrow(1, begin, count).to(theirs.device()), begin);
    }
    comparison.rows = collected.finish();
  } else {
    const at::Tensor theirs = columns == 0 ? reference.answer.rows : logits_of(reference, 0, columns);
    comparison.rows = compare_rows(theirs, answers.to(theirs.device()), own.all_rows);
  }
  if (given.pooled.defined()) {
    const at::Tensor pooled = asked.own_sequences.of(given.pooled).to(reference.answer.pooled.device());
    comparison.pooled = compare_rows(reference.answer.pooled, pooled, own.all_rows);
  }
  return gathered(std::move(comparison), own.all_rows);
}

}  // namespace pare
