#include "pare/verify/self_test.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "pare/arch/head.h"
#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace {

// One sequence where it stands before the last layer.
struct Place {
  int64_t sequence = 0;
  Inputs inputs;
  at::Tensor x, table;
  at::Tensor rows;  // its rows among all
};

// The longest sequence that is not long, so that every repetition is cheap and attention has something to choose.
int64_t choose_sequence(const Asked& asked) {
  constexpr int64_t long_enough = 64;
  const at::Tensor lengths = at::bincount(asked.sequence, {}, asked.sequences);
  const at::Tensor preferred = at::where(lengths <= long_enough, lengths, -lengths);
  return preferred.argmax().item<int64_t>();
}

Place place_of(const Asked& asked, const Answer& answer) {
  Place place;
  place.sequence = choose_sequence(asked);
  place.inputs = sequence_of(asked, place.sequence);
  int64_t row = place.sequence;
  size_t input = 0;
  while (row >= answer.last.x[input].size(0)) {
    row -= answer.last.x[input++].size(0);
  }
  place.x = answer.last.x[input].narrow(0, row, 1);
  if (answer.last.table[input].defined()) {
    place.table = answer.last.table[input].narrow(0, row, 1);
  }
  place.rows = at::nonzero(asked.sequence == place.sequence).flatten();
  return place;
}

Features run_last_layer(Loader& loader, const ComparedModel& runner, const Place& place) {
  const Architecture& a = runner.model.architecture;
  const Tables tables(runner.arithmetic);
  OneBlock blocks(loader, a);
  Forward run(a, tables, {&place.inputs, 1});
  run.begin_at(run.layers() - 1, {.x = {place.x}, .table = {place.table}});
  run.run_layer(std::ref(blocks));
  return run.finish(load_head_front(loader, a)).front();
}

// The matrices that matter, a random one first and then those with most effect; those of the head only where no other
// has any.
std::vector<std::string> choose_matrices(const ComparedModel& runner, const Place& place, uint64_t seed) {
  const c10::InferenceMode recording(false);
  const at::AutoGradMode grad(true);
  Place plain = place;  // tensors made in inference mode cannot take part
  for (at::Tensor* tensor : {&plain.x, &plain.table, &plain.inputs.ids, &plain.inputs.mask, &plain.inputs.types,
                             &plain.inputs.positions, &plain.inputs.pixels}) {
    if (tensor->defined()) {
      *tensor = tensor->clone();
    }
  }
  Loader loader(runner.model.architecture, runner.model.weights, runner.arithmetic, true);
  const Features found = run_last_layer(loader, runner, plain);
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto weighed = [&generator](const at::Tensor& values) {
    return (values.to(at::kDouble) * at::randn(values.sizes(), generator, at::kDouble).to(values.device())).sum();
  };
  at::Tensor objective;
  if (found.x.defined()) {
    const int64_t some = std::min<int64_t>(head_size(runner.model.architecture), 1024);
    objective =
        weighed(logits(head_rows(runner.model, runner.arithmetic, 0, some), runner.model.architecture, found.x));
  } else {
    objective = weighed(found.hidden);
  }
  if (pooled_of(found).defined()) {
    objective = objective + weighed(pooled_of(found));
  }
  if (!objective.requires_grad()) {
    return {};
  }
  objective.backward();
  std::vector<std::pair<std::string, double>> effects;
  double most = 0;
  for (const auto& [name, leaf] : loader.parameters()) {
    if (leaf.dim() >= 2 && leaf.grad().defined()) {
      const double effect = (leaf.grad() * leaf.detach()).to(at::kDouble).norm().item<double>();
      effects.emplace_back(name, effect);
      most = std::max(most, effect);
    }
  }
  // Rounding makes a gradient that is zero a tiny one.
  std::erase_if(effects, [most](const auto& entry) { return !(entry.second > 1e-3 * most); });
  const TensorTable table = tensor_table(runner.model.architecture);
  const auto of_head = [&table](const auto& entry) {
    return table.at(entry.first).id.module.sublayer == Sublayer::head;
  };
  if (!std::all_of(effects.begin(), effects.end(), of_head)) {
    std::erase_if(effects, of_head);
  }
  if (effects.empty()) {
    return {};
  }
  std::stable_sort(effects.begin(), effects.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> names;
  for (const auto& [name, effect] : effects) {
    names.push_back(name);
  }
  const size_t first = std::mt19937_64(seed)() % names.size();
  std::rotate(names.begin(), names.begin() + static_cast<ptrdiff_t>(first),
              names.begin() + static_cast<ptrdiff_t>(first) + 1);
  return names;
}

at::Tensor disturbed(const at::Tensor& tensor, double fraction, uint64_t seed) {
  const at::Tensor signs = 2 * at::randint(2, tensor.sizes(), at::detail::createCPUGenerator(seed), at::kDouble) - 1;
  return tensor.to(at::kDouble) * (1 + fraction * signs);
}

Weights with_disturbed(const Weights& weights, const std::string& name, double fraction, uint64_t seed) {
  Weights changed = weights;
  const Weight original = weights.at(name);
  Weight::LoadRows rows = [=](int64_t begin, int64_t count) {
    return disturbed(original.load_rows(begin, count), fraction, seed ^ static_cast<uint64_t>(begin));
  };
  changed[name] = Weight::leaf(
      original.formula(), original.dtype(), original.shape(),
      [=] { return disturbed(original.load(), fraction, seed); }, original.can_load_rows() ? rows : nullptr);
  return changed;
}

void replace(Rows& all, const at::Tensor& places, const Rows& some) {
  for (at::Tensor Rows::*field :
       {&Rows::difference, &Rows::spread, &Rows::kl, &Rows::agrees, &Rows::reference_nll, &Rows::candidate_nll}) {
    if ((all.*field).defined()) {
      all.*field = (all.*field).index_copy(0, places, some.*field);
    }
  }
}

}  // namespace

SelfTest test_check(const ComparedModel& reference, const Answer& truth, const ComparedModel& candidate,
                    const Answer& answer, const Asked& asked, const Comparison& compared, double allowed, uint64_t seed,
                    const std::function<bool(const Comparison&)>& caught) {
  const Place place = place_of(asked, answer);
  std::vector<std::string> matrices = choose_matrices(candidate, place, seed);
  if (matrices.empty()) {
    if (candidate.model.architecture.task == Task::encoder) {
      throw VerificationFailed("no matrix of the candidate's last block has any effect: the check cannot be tested");
    }
    matrices.push_back(head_matrix_name(candidate.model.architecture));
  }
  const at::Tensor rows = place.rows.to(truth.rows.device());
  Answer theirs{.rows = truth.rows.index_select(0, rows)};
  if (truth.pooled.defined()) {
    theirs.pooled = truth.pooled.narrow(0, place.sequence, 1);
  }
  const at::Tensor targets = asked.targets.defined() ? asked.targets.index_select(0, rows) : at::Tensor();
  const auto catches = [&](const std::string& matrix, double fraction) {
    const Model changed{candidate.model.architecture, with_disturbed(candidate.model.weights, matrix, fraction, seed)};
    const ComparedModel runner{changed, candidate.arithmetic};
    Loader loader(changed.architecture, changed.weights, candidate.arithmetic, false);
    const Features found = run_last_layer(loader, runner, place);
    const Comparison part =
        compare(reference, theirs, runner, {.rows = rows_of(found, place.inputs), .pooled = pooled_of(found)}, targets);
    Comparison whole = compared;
    replace(whole.rows, place.rows, part.rows);
    if (whole.pooled) {
      replace(*whole.pooled, at::full({1}, place.sequence, at::kLong), *part.pooled);
    }
    return caught(whole);
  };
  const auto found =
      std::find_if(matrices.begin(), matrices.end(), [&](const std::string& matrix) { return catches(matrix, 1); });
  if (found == matrices.end()) {
    throw VerificationFailed(
        fmt::format("the check sees nothing: with every element of {} moved by 100 % the models still count as the "
                    "same (allowed relative error {:.1e}): ask more of them, by --random N with a larger N, --tokens "
                    "or --inputs",
                    quote(matrices.front()), allowed));
  }
  // From well below what is allowed, and lower still where that is caught already.
  SelfTest result{.tensor = *found, .smallest_caught = 1};
  double fraction = std::min(allowed, 0.5) / 64;
  while (fraction > 1e-30 && catches(*found, fraction)) {
    fraction /= 1024;
  }
  for (; fraction < 1; fraction *= 2) {
    if (catches(*found, fraction)) {
      result.smallest_caught = fraction;
      break;
    }
    result.largest_missed = fraction;
  }
  return result;
}

}  // namespace pare
