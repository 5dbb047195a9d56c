// What passes make is proved: over random architectures, stored in each of the four types.

#include "pare/verify/proof.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <iostream>
#include <map>

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
  int64_t proved = 0, applied = 0;
  double residual = 0, moved = 0;
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
      CHECK_MESSAGE(proof.complete, fmt::format("seed {} {} {} ({:.2g} roundings): {}", seed, pass->id, word(dtype),
                                                step.proposal.roundings, fmt::join(proof.gaps, "; ")));
      CHECK_FALSE(proof.identical);
      for (const Relation& relation : proof.relations) {
        tally.residual = std::max(tally.residual, relation.residual);
      }
      tally.moved = std::max(tally.moved, proof.moved);
    }
  }
}

}  // namespace

TEST_CASE("what passes make is proved, in all four types") {
  const char* draws = std::getenv("PARE_DRAWS");
  const char* first = std::getenv("PARE_FIRST_SEED");
  const uint64_t count = draws ? std::stoull(draws) : 60, begin = first ? std::stoull(first) : 0;
  ProofTallies tallies;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    prove_seed(seed, tallies);
  }
  for (const auto& [key, tally] : tallies) {
    std::cout << fmt::format("{:21} {:8}: {} of {} proved, largest residual {:.2f} roundings, moved {:.2g}\n",
                             key.first, word(key.second), tally.proved, tally.applied, tally.residual, tally.moved);
    CHECK(tally.applied > 0);
  }
}

}  // namespace pare::test
