#include "pare/verify/self_test.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <random>
#include <set>

#include "pare/support/error.h"
#include "pare/support/interrupt.h"

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
  std::ranges::sort(specs, {}, &TensorSpec::id);
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

// What is known of a tensor: it is asked about 100 % first, and then about the size in the middle of what is left.
class Search {
 public:
  explicit Search(int64_t sizes) : sizes_(sizes), caught_(sizes) {}
  bool is_done() const { return caught_ - missed_ <= 1; }
  int64_t next() const { return missed_ < 0 && caught_ == sizes_ ? sizes_ - 1 : (missed_ + caught_) / 2; }
  void learn(int64_t size, bool is_caught) { (is_caught ? caught_ : missed_) = size; }

  SelfTest result(const std::string& tensor, std::span<const double> sizes) const {
    return {.tensor = tensor,
            .smallest_caught = caught_ == sizes_ ? 0 : sizes[caught_],
            .largest_missed = missed_ < 0 ? 0 : sizes[missed_]};
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
      weight = moved(weight, disturbance.movement, trial.sizes[size]);
      runner = &runners.emplace_back(ComparedModel{changed.back(), trial.candidate.arithmetic});
    }
    said.push_back({*runner, trial.answers[number][size]});
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

bool is_of_head_matrix(const Architecture& architecture, const TensorSpec& tensor) {
  return tensor.id == bias_of(head_matrix) || tensor.name == head_matrix_name(architecture);
}

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

namespace {

// A batch, where it stands before some layer.
struct Stream {
  at::Tensor x, table;  // as in LayerInputs

  Stream row(int64_t n) const { return {x.narrow(0, n, 1), table.defined() ? table.narrow(0, n, 1) : table}; }
};

Stream joined(const std::vector<Stream>& streams) {
  std::vector<at::Tensor> x, table;
  for (const Stream& stream : streams) {
    x.push_back(stream.x);
    if (stream.table.defined()) {
      table.push_back(stream.table);
    }
  }
  return {at::cat(x), table.empty() ? at::Tensor() : at::cat(table)};
}

Inputs repeated(const Inputs& one, int64_t times) {
  return each_of(one, [times](const at::Tensor& tensor) { return tensor.repeat_interleave(times, 0); });
}

// All rows, or those of a table that were kept.
at::Tensor changed_rows(const at::Tensor& rows, const at::Tensor& kept, const Disturbance& disturbance, double size) {
  if (disturbance.replacement) {
    const at::Tensor all = disturbance.replacement.load().to(at::kDouble);
    return kept.defined() ? all.index_select(0, kept) : all;
  }
  const Movement& movement = disturbance.movement;
  if (!kept.defined()) {
    return moved(rows, 0, movement, size);
  }
  std::vector<at::Tensor> each;
  for (int64_t n = 0; n < kept.size(0); ++n) {
    each.push_back(moved(rows.narrow(0, n, 1), kept[n].item<int64_t>(), movement, size));
  }
  return at::cat(each);
}

class Walk {
 public:
  Walk(const ComparedModel& runner, const Inputs& sequence, std::span<const Disturbance> disturbances,
       std::span<const double> sizes)
      : a_(runner.model.architecture),
        weights_(runner.model.weights),
        arithmetic_(runner.arithmetic),
        disturbances_(disturbances),
        sizes_(sizes),
        one_(sequence),
        all_(repeated(sequence, std::ssize(sizes))),
        tables_(arithmetic_),
        order_(layer_blocks(a_)),
        branches_(disturbances.size()) {
    PARE_CHECK(batch_size(sequence) == 1 && !sizes.empty(), "one sequence, and something to do to it");
    embed(rows_in_use(runner.model, {&sequence, 1}));
  }

  void run_layers() {
    Loader loader(a_, weights_, arithmetic_, false);
    OneBlock blocks(loader, a_);
    for (int64_t layer = 0; layer < std::ssize(order_); ++layer) {
      check_interrupt();
      const int64_t n = order_[layer];
      if (is_disturbed(n)) {
        blocks.release();  // never two
        run_disturbed(n, layer);
      }
      const BlockLayer& block = blocks(n);
      clean_ = after(block, one_, clean_, layer);
      for (size_t i = 0; i < branches_.size(); ++i) {
        if (branches_[i] && disturbances_[i].tensor.id.module.block != n) {
          branches_[i] = after(block, all_, *branches_[i], layer);
        }
      }
    }
  }

  std::vector<std::vector<Answer>> answers() const {
    Loader loader(a_, weights_, arithmetic_, false);
    const HeadLayer front = load_head_front(loader, a_);
    std::vector<std::vector<Answer>> answers;
    for (size_t i = 0; i < branches_.size(); ++i) {
      answers.push_back(branches_[i] ? split(finished(front, all_, *branches_[i])) : disturbed_ends(disturbances_[i]));
    }
    return answers;
  }

 private:
  // Those tensors, read once, as the computation wants them; all others as they were.
  template <typename Which>
  Weights with_held(Weights weights, const Which& which) const {
    for (const TensorSpec& spec : tensor_table(a_)) {
      if (!which(spec.id)) {
        continue;
      }
      Weight& weight = weights.at(spec.name);
      const at::Tensor loaded = spec.index ? weight.load() : weight.load().to(arithmetic_.device, arithmetic_.dtype);
      weight =
          Weight::leaf(weight.formula(), dtype_of(loaded.scalar_type()), weight.shape(), [loaded] { return loaded; });
    }
    return weights;
  }

  // What becomes of the clean stream, or of anything else, when the tensor is moved by each size in turn.
  template <typename Make>
  Stream for_each_size(Weights& weights, const Disturbance& disturbance, const at::Tensor& original,
                       const at::Tensor& kept, const Make& make) const {
    Weight& weight = weights.at(disturbance.tensor.name);
    const Weight before = weight;
    Loader loader(a_, weights, arithmetic_, false);  // which sees each change
    std::vector<Stream> made;
    for (size_t n = 0; n < sizes_.size(); ++n) {
      const at::Tensor changed = changed_rows(original, kept, disturbance, sizes_[n]);
      weight = Weight::leaf(before.formula(), Dtype::f64, before.shape(), [changed] { return changed; });
      made.push_back(make(loader, static_cast<int64_t>(n)));
    }
    weight = before;
    return joined(made);
  }

  void embed(const RowsInUse& few) {
    const auto stream_of = [&](Loader& loader) {
      EmbeddingLayer layer = load_embedding(loader, a_);
      layer.kept = few.kept.defined() ? few.kept.to(arithmetic_.device) : few.kept;
      Forward run(a_, tables_, {&one_, 1});
      run.embed(layer);
      return Stream{run.streams().x.front(), run.streams().table.front()};
    };
    Weights held = with_held(few.weights, [](const TensorId& id) { return id.module.sublayer == Sublayer::embedding; });
    Loader loader(a_, held, arithmetic_, false);
    clean_ = stream_of(loader);
    for (size_t i = 0; i < disturbances_.size(); ++i) {
      const TensorSpec& tensor = disturbances_[i].tensor;
      if (tensor.id.module.sublayer == Sublayer::embedding) {
        const Weight& original = few.weights.at(tensor.name);
        const at::Tensor kept = original.shape() == tensor.shape ? at::Tensor() : few.kept;
        branches_[i] = for_each_size(held, disturbances_[i], original.load(), kept,
                                     [&](Loader& changed, int64_t) { return stream_of(changed); });
      }
    }
  }

  bool is_disturbed(int64_t block) const {
    return std::ranges::any_of(disturbances_,
                               [block](const Disturbance& d) { return d.tensor.id.module.block == block; });
  }

  // A layer whose block is another one for each size. A block that several layers run comes here each time.
  void run_disturbed(int64_t n, int64_t layer) {
    Weights held = with_held(weights_, [n](const TensorId& id) { return id.module.block == n; });
    for (size_t i = 0; i < disturbances_.size(); ++i) {
      const TensorSpec& tensor = disturbances_[i].tensor;
      if (tensor.id.module.block != n) {
        continue;
      }
      const std::optional<Stream> before = branches_[i];  // none: it branches off here
      branches_[i] = for_each_size(
          held, disturbances_[i], weights_.at(tensor.name).load(), {}, [&](Loader& changed, int64_t size) {
            check_interrupt();
            return after(load_block(changed, a_, n), one_, before ? before->row(size) : clean_, layer);
          });
    }
  }

  Stream after(const BlockLayer& block, const Inputs& inputs, const Stream& before, int64_t layer) const {
    Forward run(a_, tables_, {&inputs, 1});
    run.begin_at(layer, {.x = {before.x}, .table = {before.table}});
    run.run_layer([&block](int64_t) -> const BlockLayer& { return block; });
    return {run.streams().x.front(), {}};
  }

  Answer finished(const HeadLayer& front, const Inputs& inputs, const Stream& last) const {
    Forward run(a_, tables_, {&inputs, 1});
    run.begin_at(run.layers(), {.x = {last.x}, .table = {last.table}});
    const Features features = run.finish(front).front();
    return {.rows = rows_of(features, inputs), .pooled = pooled_of(features)};
  }

  // A batch's answer as one for each size.
  std::vector<Answer> split(const Answer& batch) const {
    const int64_t sizes = std::ssize(sizes_), rows = batch.rows.size(0) / sizes;
    std::vector<Answer> answers;
    for (int64_t n = 0; n < sizes; ++n) {
      answers.push_back({.rows = batch.rows.narrow(0, n * rows, rows),
                         .pooled = batch.pooled.defined() ? batch.pooled.narrow(0, n, 1) : batch.pooled});
    }
    return answers;
  }

  // Of what stands behind the last layer. The head's own matrix and bias are not read here.
  std::vector<Answer> disturbed_ends(const Disturbance& disturbance) const {
    std::vector<Answer> answers;
    for (const double size : sizes_) {
      Weights changed = weights_;
      Weight& weight = changed.at(disturbance.tensor.name);
      weight = disturbance.replacement ? disturbance.replacement : moved(weight, disturbance.movement, size);
      Loader loader(a_, changed, arithmetic_, false);
      answers.push_back(finished(load_head_front(loader, a_), one_, clean_));
    }
    return answers;
  }

  const Architecture& a_;
  const Weights& weights_;
  Arithmetic arithmetic_;
  std::span<const Disturbance> disturbances_;
  std::span<const double> sizes_;
  Inputs one_, all_;  // the sequence, and once for each size
  Tables tables_;
  std::vector<int64_t> order_;
  Stream clean_;
  std::vector<std::optional<Stream>> branches_;  // of each disturbance, from where it stands on
};

}  // namespace

std::vector<std::vector<Answer>> disturbed_answers(const ComparedModel& runner, const Inputs& sequence,
                                                   std::span<const Disturbance> disturbances,
                                                   std::span<const double> sizes) {
  const at::NoGradGuard no_grad;
  Walk walk(runner, sequence, disturbances, sizes);
  walk.run_layers();
  return walk.answers();
}

}  // namespace pare
