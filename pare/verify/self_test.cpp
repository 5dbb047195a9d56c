#include "pare/verify/self_test.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <set>

#include "pare/support/error.h"
#include "pare/verify/disturbed_run.h"

namespace pare {

namespace {

constexpr size_t of_blocks = 4;
constexpr double factor = 4;  // between one size and the next

// Up to 100 %.
std::vector<double> sizes_from(double smallest) {
  std::vector<double> sizes;
  for (double size = std::clamp(smallest, 1e-15, 1 / factor); size < 1 / std::sqrt(factor); size *= factor) {
    sizes.push_back(size);
  }
  sizes.push_back(1);
  return sizes;
}

// Some at random, of as many kinds as there are.
std::vector<TensorSpec> some_of(std::vector<TensorSpec> specs, size_t count, std::mt19937_64& random) {
  for (size_t i = specs.size(); i > 1; --i) {
    std::swap(specs[i - 1], specs[random() % i]);
  }
  std::set<std::tuple<Sublayer, Slot, TensorKind>> kinds;
  std::stable_partition(specs.begin(), specs.end(), [&kinds](const TensorSpec& spec) {
    return kinds.insert({spec.id.module.sublayer, spec.id.module.slot, spec.id.kind}).second;
  });
  specs.resize(std::min(specs.size(), count));
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) { return a.id < b.id; });
  return specs;
}

// One of the embedding, some of blocks, one of what comes behind them.
std::vector<TensorSpec> choose_tensors(const Architecture& architecture, uint64_t seed) {
  std::vector<TensorSpec> embedding, blocks, ends;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    if (spec.index || element_count(spec.shape) == 0) {
      continue;
    }
    (spec.id.module.block ? blocks : spec.id.module.sublayer == Sublayer::embedding ? embedding : ends).push_back(spec);
  }
  std::mt19937_64 random(seed);
  std::vector<TensorSpec> chosen = some_of(std::move(embedding), 1, random);
  for (std::vector<TensorSpec>& more : {std::ref(blocks), std::ref(ends)}) {
    const std::vector<TensorSpec> some = some_of(std::move(more), &more == &ends ? 1 : of_blocks, random);
    chosen.insert(chosen.end(), some.begin(), some.end());
  }
  return chosen;
}

bool is_zero(const Weight& weight) {
  if (!weight.can_load_rows()) {
    return !weight.load().any().item<bool>();
  }
  constexpr int64_t rows = 1024;
  for (int64_t begin = 0; begin < weight.shape().front(); begin += rows) {
    if (weight.load_rows(begin, std::min(rows, weight.shape().front() - begin)).any().item<bool>()) {
      return false;
    }
  }
  return true;
}

// Nothing is a fraction of zero: a tensor of zeros is moved as far as one that was just initialised has elements.
Disturbance disturbance_of(const TensorSpec& tensor, const Weights& weights, uint64_t seed) {
  Disturbance disturbance{tensor, {.seed = seed}};
  if (is_zero(weights.at(tensor.name))) {
    disturbance.movement.from_zero = 1 / std::sqrt(static_cast<double>(tensor.shape.empty() ? 1 : tensor.shape.back()));
  }
  return disturbance;
}

// The matrix that answers are multiplied with when they are compared, or its bias.
bool is_of_head_matrix(const Architecture& a, const TensorSpec& tensor) {
  return tensor.id == bias_of(head_matrix) || tensor.name == head_matrix_name(a);
}

// What is known of a tensor: it is asked about 100 % first, and then about the size in the middle of what is left.
class Search {
 public:
  explicit Search(int64_t sizes) : sizes_(sizes), caught_(sizes) {}
  bool is_done() const { return caught_ - missed_ <= 1; }
  int64_t next() const { return missed_ < 0 && caught_ == sizes_ ? sizes_ - 1 : (missed_ + caught_) / 2; }
  void learn(int64_t size, bool is_caught) { (is_caught ? caught_ : missed_) = size; }

  SelfTest result(const std::string& tensor, std::span<const double> sizes) const {
    return {.tensor = tensor,
            .smallest_caught = caught_ == sizes_ ? 0 : sizes[static_cast<size_t>(caught_)],
            .largest_missed = missed_ < 0 ? 0 : sizes[static_cast<size_t>(missed_)]};
  }

 private:
  int64_t sizes_, missed_ = -1, caught_;
};

// What the candidate says in all its disturbances, and whom it is compared with.
struct Trial {
  const ComparedModel &reference, &candidate;
  const Sample& sample;
  uint64_t seed;
  std::vector<double> sizes;
  std::vector<Disturbance> disturbances;
  std::vector<std::vector<Answer>> answers;  // of each disturbance and size
};

struct Attempt {
  size_t disturbance = 0;
  int64_t size = 0;
};

std::vector<Comparison> compare_attempts(const Trial& trial, std::span<const Attempt> attempts) {
  const Model& whole = trial.candidate.model;
  std::vector<Said> said;
  std::deque<Model> changed;  // a deque, since they are referred to
  std::deque<ComparedModel> runners;
  for (const auto& [number, size] : attempts) {
    const Disturbance& disturbance = trial.disturbances[number];
    const ComparedModel* runner = &trial.candidate;
    if (is_of_head_matrix(whole.architecture, disturbance.tensor)) {
      Weight& weight = changed.emplace_back(whole).weights.at(disturbance.tensor.name);
      weight = moved(weight, disturbance.movement, trial.sizes[static_cast<size_t>(size)]);
      runner = &runners.emplace_back(ComparedModel{changed.back(), trial.candidate.arithmetic});
    }
    said.push_back({*runner, trial.answers[number][static_cast<size_t>(size)]});
  }
  return compare({trial.reference, trial.sample.truth}, said, trial.sample.targets, trial.seed);
}

std::vector<SelfTest> find_smallest(const Trial& trial, const std::function<bool(const Comparison&)>& caught) {
  std::vector<Search> searches(trial.disturbances.size(), Search(std::ssize(trial.sizes)));
  while (true) {
    std::vector<Attempt> attempts;
    for (const bool of_head : {false, true}) {  // those that share the candidate's head matrix stand together
      for (size_t i = 0; i < searches.size(); ++i) {
        const TensorSpec& tensor = trial.disturbances[i].tensor;
        if (!searches[i].is_done() && is_of_head_matrix(trial.candidate.model.architecture, tensor) == of_head) {
          attempts.push_back({i, searches[i].next()});
        }
      }
    }
    if (attempts.empty()) {
      break;
    }
    const std::vector<Comparison> compared = compare_attempts(trial, attempts);
    for (size_t n = 0; n < attempts.size(); ++n) {
      searches[attempts[n].disturbance].learn(attempts[n].size, caught(compared[n]));
    }
  }
  std::vector<SelfTest> tests;
  for (size_t i = 0; i < searches.size(); ++i) {
    tests.push_back(searches[i].result(trial.disturbances[i].tensor.name, trial.sizes));
  }
  return tests;
}

// To every token, but for rounding.
bool is_constant(const ComparedModel& reference, const Sample& sample, uint64_t seed) {
  constexpr double rounding = 1e-9;
  if (sample.truth.rows.size(0) < 2) {
    return false;
  }
  const Answer turned{.rows = sample.truth.rows.roll(1, 0), .pooled = sample.truth.pooled};
  const Said said{reference, turned};
  return largest(compare({reference, sample.truth}, {&said, 1}, sample.targets, seed).front().rows.error) <= rounding;
}

}  // namespace

std::vector<SelfTest> test_check(const ComparedModel& reference, const ComparedModel& candidate, const Sample& sample,
                                 double smallest, uint64_t seed, const std::function<bool(const Comparison&)>& caught) {
  const at::NoGradGuard no_grad;
  Trial trial{reference, candidate, sample, seed, sizes_from(smallest), {}, {}};
  for (const TensorSpec& tensor : choose_tensors(candidate.model.architecture, seed)) {
    trial.disturbances.push_back(disturbance_of(tensor, candidate.model.weights, seed + trial.disturbances.size()));
  }
  trial.answers = disturbed_answers(candidate, sample.inputs, trial.disturbances, trial.sizes);
  return find_smallest(trial, caught);
}

void check_sees(std::span<const SelfTest> tests, const ComparedModel& reference, const Sample& sample, uint64_t seed) {
  std::vector<std::string> missed;
  for (const SelfTest& test : tests) {
    if (test.smallest_caught == 0) {
      missed.push_back(test.tensor);
    }
  }
  if (missed.size() < tests.size() || is_constant(reference, sample, seed)) {
    return;
  }
  throw VerificationFailed(
      fmt::format("the check sees nothing: with every element of {} moved by 100 % the models would still count as the "
                  "same, since rounding costs this model as much as it says: store the candidate in a type with more "
                  "digits, and compare in float64",
                  fmt::join(missed, " or ")));
}

}  // namespace pare
