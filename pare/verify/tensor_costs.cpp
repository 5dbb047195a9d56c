#include "pare/verify/tensor_costs.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/support/progress.h"
#include "pare/verify/self_test.h"

namespace pare {

namespace {

constexpr size_t at_once = 32;  // so many streams are held

Disturbance replaced_by(const TensorSpec& tensor, const ComparedModel& candidate) {
  return {.tensor = tensor, .movement = {}, .replacement = candidate.model.weights.at(tensor.name)};
}

// The KL of every row of one sequence, of each replacement.
std::vector<at::Tensor> kl_of(const ComparedModel& reference, const Inputs& sequence,
                              std::span<const Disturbance> replacements, uint64_t seed) {
  const Asked asked = ask(reference.model.architecture, {&sequence, 1}, reference.arithmetic.device);
  const Answer truth = answer_of(reference, asked, [] {});
  const std::vector<double> once = {1};
  const std::vector<std::vector<Answer>> answers = disturbed_answers(reference, sequence, replacements, once);
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < replacements.size(); ++i) {
    Model changed = reference.model;
    if (is_of_head_matrix(changed.architecture, replacements[i].tensor)) {
      changed.weights.at(replacements[i].tensor.name) = replacements[i].replacement;
    }
    const ComparedModel runner{changed, reference.arithmetic};
    const Said said{runner, answers[i].front()};
    rows.push_back(compare({reference, truth}, {&said, 1}, asked.targets, seed).front().rows.kl);
  }
  return rows;
}

}  // namespace

std::vector<TensorCost> costs_of_tensors(const ComparedModel& reference, const ComparedModel& candidate,
                                         std::span<const std::string> tensors, std::span<const Inputs> sequences,
                                         uint64_t seed, const Communicator& ranks) {
  const at::NoGradGuard no_grad;
  const Share own = share_of(std::vector<double>(sequences.size(), 1.0), ranks);
  const TensorTable table = tensor_table(reference.model.architecture);
  std::vector<TensorCost> costs;
  Progress progress("tensor by tensor", (tensors.size() + at_once - 1) / at_once * sequences.size());
  for (size_t begin = 0; begin < tensors.size(); begin += at_once) {
    std::vector<Disturbance> replacements;
    for (const std::string& name : tensors.subspan(begin, std::min(at_once, tensors.size() - begin))) {
      replacements.push_back(replaced_by(table.at(name), candidate));
    }
    std::vector<std::vector<at::Tensor>> rows(replacements.size());
    for (const Inputs& sequence : sequences.subspan(own.first, own.size())) {
      const std::vector<at::Tensor> found = kl_of(reference, sequence, replacements, seed);
      for (size_t i = 0; i < found.size(); ++i) {
        rows[i].push_back(found[i]);
      }
      progress.advance();
    }
    for (size_t i = 0; i < replacements.size(); ++i) {
      const at::Tensor kl = gathered_rows(rows[i].empty() ? at::empty({0}, at::kDouble) : at::cat(rows[i]), ranks);
      costs.push_back({replacements[i].tensor.name, mean_of_rows(kl), largest(kl)});
    }
  }
  std::ranges::stable_sort(costs, std::greater(), [](const TensorCost& cost) { return cost.mean_kl.value; });
  return costs;
}

}  // namespace pare
