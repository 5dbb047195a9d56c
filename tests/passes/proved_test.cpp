// What every pass makes is proved by a prover that knows no pass: alone and after one another, over random models.
// PARE_DRAWS and PARE_FIRST_SEED ask for more.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>

#include "pare/arch/architecture_json.h"
#include "pare/proof/proof.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/random_architecture.h"

namespace pare::test {

namespace {

uint64_t asked_for(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::stoull(text) : otherwise;
}

Model stored_in(const Model& model, Dtype dtype) {
  Model stored = model;
  for (auto& [name, weight] : stored.weights) {
    const at::Tensor values = weight.load();
    const at::Tensor kept = values.is_floating_point() ? values.to(scalar_type(dtype)) : values;
    weight = Weight::leaf(name, dtype_of(kept.scalar_type()), kept.sizes().vec(), [kept] { return kept; });
  }
  return stored;
}

struct Tally {
  int64_t proved = 0, open = 0;
  std::string first;  // gap
};

void ask(const Model& source, const std::vector<PassCall>& calls, Dtype dtype, uint64_t seed, Tally& tally) {
  const Pipeline pipeline = run_passes(source, calls);
  const bool changed = std::any_of(pipeline.steps.begin(), pipeline.steps.end(),
                                   [](const PassStep& step) { return step.proposal.applies; });
  if (!changed || is_approximate(pipeline)) {
    return;
  }
  const Proof proof = prove(source, stored_in(pipeline.after, dtype), at::kCPU);
  ++(proof.complete ? tally.proved : tally.open);
  if (!proof.complete && (tally.first.empty() || std::getenv("PARE_DRAWS"))) {
    tally.first += fmt::format("\n    seed {} in {}: {}", seed, word(dtype), proof.gaps.front());
    if (std::getenv("PARE_SHOW")) {
      tally.first += architecture_to_json(source.architecture).dump() + "\n\n" +
                     architecture_to_json(pipeline.after.architecture).dump();
    }
  }
}

}  // namespace

TEST_CASE("the results of all passes are proved") {
  const uint64_t first = asked_for("PARE_FIRST_SEED", 0), draws = asked_for("PARE_DRAWS", 100);
  std::map<std::string, Tally> tallies;
  for (uint64_t seed = first; seed < first + draws; ++seed) {
    ArchitectureDraw draw(seed);
    const Architecture a = draw.draw();
    const Dtype dtype = seed % 2 == 0 ? Dtype::f64 : Dtype::f32;
    const Model source = stored_in({a, as_weights(drawn_tensors(a, draw, seed))}, dtype);
    std::vector<PassCall> all;
    for (const Pass* pass : all_passes()) {
      ask(source, {call_of(*pass)}, dtype, seed, tallies[std::string(pass->id)]);
      if (draw.chance(0.6)) {
        all.push_back(call_of(*pass));
      }
    }
    ask(source, all, dtype, seed, tallies["one after another"]);
  }
  for (const auto& [what, tally] : tallies) {
    std::cout << fmt::format("  {:<24} {:>4} proved {:>4} open{}\n", what, tally.proved, tally.open, tally.first);
    CHECK(tally.proved > 0);
    // Some bases are so badly conditioned that nothing is proved by them.
    CHECK_MESSAGE(tally.open * 20 <= tally.proved, what);
  }
}

}  // namespace pare::test
