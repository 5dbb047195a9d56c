// What several passes make is proved by a prover that knows no pass, over random models.
// PARE_DRAWS and PARE_FIRST_SEED ask for more.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "pare/rewrite/pipeline.h"
#include "pare/search/prove.h"
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

}  // namespace

// One pass alone is asked in proof_test.cpp. Here about half of them, one after another, as anyone may call them.
TEST_CASE("what several passes make, one after another, is proved") {
  const uint64_t first = asked_for("PARE_FIRST_SEED", 0), draws = asked_for("PARE_DRAWS", 60);
  int64_t asked = 0, proved = 0;
  for (uint64_t seed = first; seed < first + draws; ++seed) {
    ArchitectureDraw draw(seed);
    const Architecture a = draw.draw();
    const Dtype dtype = seed % 2 == 0 ? Dtype::f64 : Dtype::f32;
    const Model source = stored_in({a, as_weights(drawn_tensors(a, draw, seed))}, dtype);
    std::vector<PassCall> calls;
    for (const Pass* pass : all_passes()) {
      // Without constant norms the first does nothing, and a draw of its own would move all others.
      if (pass->id == "fold_constant_norm" || draw.chance(0.6)) {
        const bool keeps = pass->id == "fold_norm_gain" && seed % 4 >= 2;  // what no reader can take stays, divided
        calls.push_back(call_of(*pass, keeps ? Options{{"bias", "keep"}} : Options{}));
      }
    }
    const Pipeline pipeline = run_passes(source, calls);
    if (std::none_of(pipeline.steps.begin(), pipeline.steps.end(),
                     [](const PassStep& step) { return step.proposal.applies; })) {
      continue;
    }
    const Proof proof = prove(source, stored_in(pipeline.after, dtype), at::kCPU);
    ++asked;
    proved += proof.complete ? 1 : 0;
    if (!proof.complete) {
      std::vector<std::string_view> applied;
      for (const PassStep& step : pipeline.steps) {
        if (step.proposal.applies) {
          applied.push_back(step.call.pass->id);
        }
      }
      std::cout << fmt::format("seed {} in {}, {}: not proved: {}\n", seed, word(dtype), fmt::join(applied, " "),
                               proof.gaps.front());
    }
  }
  std::cout << fmt::format("one after another: {} of {} proved\n", proved, asked);
  CHECK(asked * 2 > static_cast<int64_t>(draws));
  CHECK(proved * 100 >= asked * 98);  // docs/certificates/README.md, "What is not proved"
}

// Of what gauge_heads did nothing is left behind a product but the order of heads, and what float64 lost. Two heads
// whose scores changed places, and whose values did not, are other heads.
TEST_CASE("heads that were put into another gauge and order, and then collapsed, are proved") {
  const uint64_t first = asked_for("PARE_FIRST_SEED", 0), draws = asked_for("PARE_DRAWS", 24);
  const PassCall gauge = call_of(find_pass("gauge_heads"));
  const PassCall collapse = call_of(find_pass("collapse_heads"), Options{{"pairs", "all"}});
  int64_t asked = 0, proved = 0, swapped = 0, fooled = 0;
  for (uint64_t seed = first; asked < static_cast<int64_t>(draws); ++seed) {
    ArchitectureDraw draw(seed);
    const Architecture a = draw.draw();
    const Model source = stored_in({a, as_weights(drawn_tensors(a, draw, seed))}, Dtype::f64);
    const Pipeline both = run_passes(source, {gauge, collapse});
    if (!both.steps[0].proposal.applies || !both.steps[1].proposal.applies) {
      continue;
    }
    Model after = stored_in(both.after, Dtype::f64);
    const Proof proof = prove(source, after, at::kCPU);
    ++asked;
    proved += proof.complete ? 1 : 0;
    CHECK_MESSAGE(proof.complete, fmt::format("seed {}: {}", seed, fmt::join(proof.gaps, "; ")));
    const Attention& t = after.architecture.blocks[0].attention;
    const auto scores = after.weights.find(name_of(weight_of(in_attention(0, Slot::query_key))));
    if (t.heads > 1 && scores != after.weights.end()) {
      const at::Tensor other = scores->second.load().flip(0).contiguous();
      scores->second = Weight::leaf(scores->first, Dtype::f64, other.sizes().vec(), [other] { return other; });
      ++swapped;
      fooled += prove(source, after, at::kCPU).complete ? 1 : 0;
    }
  }
  std::cout << fmt::format("gauged and collapsed: {} of {} proved\n", proved, asked);
  CHECK(swapped > 0);
  CHECK(fooled == 0);
}

}  // namespace pare::test
