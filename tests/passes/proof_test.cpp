// What passes make is proved: over random architectures, stored in each of the four types.

#include "pare/search/prove.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>

#include "pare/algebra/operations.h"
#include "pare/algebra/prediction.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/random_architecture.h"

namespace pare::test {

namespace {

Model stored_in(Model model, Dtype dtype) {
  for (auto& [name, weight] : model.weights) {
    weight = word(weight.dtype()).empty() ? weight : rounded(weight, dtype);
  }
  return model;
}

struct ProofTally {
  int64_t proved = 0, applied = 0, unchanged = 0;
  double residual = 0, moved = 0;
  std::vector<std::string> missed;
};

using ProofTallies = std::map<std::pair<std::string, Dtype>, ProofTally>;

// A rewrite that loses more than a tenth in its type is refused before anyone stores it.
constexpr double accepted_error = 0.1;

void prove_seed(uint64_t seed, ProofTallies& tallies) {
  ArchitectureDraw draw(seed);
  const Architecture drawn = draw.draw();
  const Architecture architecture = seed % 3 == 2 ? draw.with_other_end(drawn) : drawn;
  const Model original{architecture, as_weights(drawn_tensors(architecture, draw, seed))};
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const Model model = stored_in(original, dtype);
    for (const Pass* pass : all_passes()) {
      const PassStep step = run_passes(model, {call_of(*pass)}).steps.at(0);
      if (!step.proposal.applies || predicted_error(step.proposal.roundings, dtype) > accepted_error) {
        continue;
      }
      const Proof proof = prove(model, stored_in(step.proposal.after, dtype), at::kCPU);
      ProofTally& tally = tallies[{std::string(pass->id), dtype}];
      ++tally.applied;
      tally.proved += proof.complete ? 1 : 0;
      if (!proof.complete) {
        tally.missed.push_back(
            fmt::format("seed {} ({:.2g} roundings): {}", seed, step.proposal.roundings, fmt::join(proof.gaps, "; ")));
        CHECK_FALSE(proof.gaps.empty());
        continue;
      }
      tally.unchanged += proof.identical ? 1 : 0;
      for (const Relation& relation : proof.relations) {
        tally.residual = std::max(tally.residual, relation.residual);
      }
      tally.moved = std::max(tally.moved, proof.moved);
    }
  }
}

// Norms that are none, in the types that hold their gains: proved wherever a bound says so.
void prove_constant_norms(uint64_t seed, ProofTallies& tallies) {
  ArchitectureDraw draw(seed);
  Architecture architecture = draw.draw();
  Tensors tensors = drawn_tensors(architecture, draw, seed);
  make_norms_constant(architecture, tensors);
  for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const Model model = stored_in({architecture, as_weights(tensors)}, dtype);
    const PassStep step = run_passes(model, {call_of(find_pass("fold_constant_norm"))}).steps.at(0);
    if (step.proposal.applies && step.proposal.notes.front().ends_with("for all inputs")) {
      const Proof proof = prove(model, stored_in(step.proposal.after, dtype), at::kCPU);
      ProofTally& tally = tallies[{"fold_constant_norm", dtype}];
      ++tally.applied;
      tally.proved += proof.complete ? 1 : 0;
      if (!proof.complete) {
        tally.missed.push_back(fmt::format("seed {}: {}", seed, fmt::join(proof.gaps, "; ")));
      }
    }
  }
}

// One tensor of a rewritten model, disturbed: an element, a row, all of it, or its sign; a little or much.
bool sabotage(Model& model, ArchitectureDraw& draw) {
  auto entry = model.weights.begin();
  std::advance(entry, draw.between(0, std::ssize(model.weights) - 1));
  at::Tensor tensor = entry->second.load().clone();
  if (!tensor.is_floating_point()) {
    return false;
  }
  const double factor = 1 + draw.pick({1e-9, 1e-6, 1e-3, 0.1, 1.0, -2.0});
  at::Tensor flat = tensor.view({tensor.size(0), -1});
  const int64_t row = draw.between(0, flat.size(0) - 1);
  const int64_t how = draw.between(0, 2);
  if (how == 0) {
    flat[row][draw.between(0, flat.size(1) - 1)].mul_(factor);
  } else if (how == 1) {
    flat[row].mul_(factor);
  } else {
    flat.mul_(factor);
  }
  entry->second = Weight::leaf(entry->first, entry->second.dtype(), entry->second.shape(), [tensor] { return tensor; });
  return true;
}

}  // namespace

// Whatever is disturbed, what is said to be proved answers alike: the prover against the executor.
TEST_CASE("what is proved is the same function, however a rewrite is disturbed") {
  const char* draws = std::getenv("PARE_DRAWS");
  std::vector<uint64_t> seeds(draws ? std::stoull(draws) : 20);
  std::iota(seeds.begin(), seeds.end(), uint64_t{0});
  seeds.push_back(348);  // once proved wrongly: what was found under a map that was given up
  int64_t disturbed = 0, seen = 0, proved = 0;
  for (uint64_t seed : seeds) {
    ArchitectureDraw draw(seed);
    const Architecture drawn = draw.draw();
    const Architecture architecture = seed % 3 == 2 ? draw.with_other_end(drawn) : drawn;
    const Model original{architecture, as_weights(drawn_tensors(architecture, draw, seed))};
    const Inputs inputs = random_inputs(architecture, 3, std::min<int64_t>(architecture.context, 6), seed);
    const Outputs answer = Executor(original, at::kDouble).forward(inputs);
    for (const Pass* pass : all_passes()) {
      const PassStep step = run_passes(original, {call_of(*pass)}).steps.at(0);
      if (step.proposal.roundings > 1e6) {  // whose own error hides what is disturbed
        continue;
      }
      for (int trial = 0; trial < 2; ++trial) {
        Model after = stored_in(step.proposal.after, Dtype::f64);
        if (!sabotage(after, draw)) {
          continue;
        }
        const Proof proof = prove(original, after, at::kCPU);
        const double error = relative_error(Executor(after, at::kDouble).forward(inputs), answer);
        ++disturbed;
        seen += error > 1e-7 ? 1 : 0;
        proved += proof.complete ? 1 : 0;
        CHECK_FALSE_MESSAGE((proof.complete && error > 1e-7), fmt::format("seed {} {}: error {:.3g}, condition {:.3g}",
                                                                          seed, pass->id, error, proof.condition));
      }
    }
  }
  std::cout << fmt::format("{} disturbed, {} answer otherwise, {} are proved all the same\n", disturbed, seen, proved);
  CHECK(seen * 2 > disturbed);
}

TEST_CASE("what passes make is proved, in all four types") {
  const char* draws = std::getenv("PARE_DRAWS");
  const char* first = std::getenv("PARE_FIRST_SEED");
  const uint64_t count = draws ? std::stoull(draws) : 60, begin = first ? std::stoull(first) : 0;
  ProofTallies tallies;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    prove_seed(seed, tallies);
    prove_constant_norms(seed, tallies);
  }
  for (const auto& [key, tally] : tallies) {
    std::cout << fmt::format("{:21} {:8}: {} of {} proved, largest residual {:.2f} roundings, moved {:.2g}\n",
                             key.first, word(key.second), tally.proved, tally.applied, tally.residual, tally.moved);
    for (const std::string& missed : tally.missed) {
      std::cout << "  not proved: " << missed << "\n";
    }
    CHECK(tally.applied > 0);
    // What is missed is in docs/certificates/README.md, "What is not proved": heads that have lost their rank, and in
    // narrow types roundings in a basis that are a quarter of what is usual beside them.
    struct Percent {
      int64_t exact, wide, narrow;
    };
    static const std::map<std::string, Percent> percent_of_bases = {{"eliminate_projection", {100, 100, 85}},
                                                                    {"merge_skipless", {100, 100, 80}},
                                                                    {"rotate_residual", {100, 100, 85}},
                                                                    {"gauge_heads", {100, 100, 98}},
                                                                    {"shrink_head_pairs", {100, 98, 97}}};
    const auto found = percent_of_bases.find(std::string(key.first));
    const Percent least = found == percent_of_bases.end() ? Percent{100, 100, 100} : found->second;
    const int64_t percent = key.second == Dtype::f64   ? least.exact
                            : key.second == Dtype::f32 ? least.wide
                                                       : least.narrow;
    CHECK(tally.proved * 100 >= tally.applied * percent);
    // A head that has lost its rank stays as it is, and some model has no other: only its product tells.
    CHECK(tally.unchanged * 100 <= (key.first == "gauge_heads" ? tally.applied : 0));
  }
}

}  // namespace pare::test
