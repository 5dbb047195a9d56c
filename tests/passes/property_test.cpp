// Never silently wrong: every pass on architectures drawn from the whole schema either refuses with reasons, or gives
// the same function in exactly as many parameters as it promised.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/rewrite/explain.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/random_architecture.h"

namespace pare::test {

namespace {

struct Tally {
  int64_t applied = 0, refused = 0;
  double worst = 0;  // error over what is allowed
};

struct Original {
  Model model;
  Inputs inputs;
  Outputs answer;
};

// How much of a rounding error the original itself makes in its answer: about 10 for a trained model, thousands for
// some of these draws, whose weights are hostile on purpose. No rewrite can do better than the model it rewrites.
double own_amplification(const Original& original) {
  const Executor low(original.model, at::kFloat);
  return relative_error(low.forward(original.inputs), original.answer) / unit_roundoff(Dtype::f32);
}

// max(1e-12, 100 u Σ cond), where 100 covers any model that amplifies rounding by less than that itself.
double check_same(const Original& original, const Model& after, double roundings, const std::string& what) {
  const Executor model(after, at::kDouble);
  const double error = relative_error(model.forward(original.inputs), original.answer);
  double allowed = std::max(1e-12, 100 * predicted_error(roundings, Dtype::f64));
  if (error > allowed) {
    allowed *= std::max(1.0, own_amplification(original) / 100);
  }
  CHECK_MESSAGE(error <= allowed, fmt::format("{}: error {:.3g}, allowed {:.3g}", what, error, allowed));
  return error / allowed;
}

void check_tensors(const Model& after) {
  const TensorTable table = tensor_table(after.architecture);
  CHECK(after.weights.size() == table.size());
  for (const TensorSpec& spec : table) {
    const auto found = after.weights.find(spec.name);
    REQUIRE_MESSAGE(found != after.weights.end(), spec.name);
    CHECK_MESSAGE(found->second.shape() == spec.shape, spec.name);
  }
}

// What no formula speaks of is as it was.
void check_explained(const Weights& before, const Weights& after) {
  const Explanation said = explain(before, after);
  CHECK(text_of(said).empty() == (before == after));  // what is remembered may change alone
  for (const auto& [name, weight] : after) {
    if (!said.formulas.contains(name)) {
      CHECK_MESSAGE(at::equal(weight.load(), before.at(name).load()), name);
    }
  }
}

void check_step(const Original& original, const PassStep& step, Tally& tally) {
  const Proposal& proposal = step.proposal;
  const Architecture& before = original.model.architecture;
  if (!proposal.applies) {
    ++tally.refused;
    CHECK(proposal.after.architecture == before);
    const bool reasons =
        std::any_of(proposal.preconditions.begin(), proposal.preconditions.end(),
                    [](const Precondition& p) { return !p.holds && !p.where.empty() && !p.found.empty(); });
    CHECK_MESSAGE(reasons, step.call.pass->id);
    return;
  }
  ++tally.applied;
  check_tensors(proposal.after);
  check_explained(original.model.weights, proposal.after.weights);
  tally.worst = std::max(tally.worst, check_same(original, proposal.after, proposal.roundings, text_of(step.call)));
  CHECK(count(before).total - count(proposal.after.architecture).total == step.saved_parameters);
}

Options drawn_options(ArchitectureDraw& draw, const Pass& pass, const Architecture& architecture) {
  Options options;
  for (const PassOption& option : pass.options) {
    if (option.name == "head") {
      options["head"] = architecture.context % 2 == 0 ? "untie" : "keep";
    } else if (option.name == "widen") {  // by a number that is there already
      options["widen"] = architecture.vocab % 2 == 0 ? "true" : "false";
    } else if (option.name == "bias") {
      options["bias"] = architecture.vocab % 2 == 0 ? "keep" : "fold";
    } else if (option.name == "target") {
      options["target"] = draw.pick<std::string>({"q", "k", "v", "best"});
    } else if (option.name == "layer" && draw.chance(0.3)) {
      options["layer"] = std::to_string(draw.between(0, static_cast<int64_t>(layer_blocks(architecture).size()) - 1));
    } else if (option.name == "triangular" && draw.chance(0.5)) {
      const TensorTable table = tensor_table(architecture);
      const int64_t number = draw.between(0, static_cast<int64_t>(table.size()) - 1);
      options["triangular"] = (table.begin() + number)->name;
    } else if (option.name == "pairs") {  // `saving` is what few of these models have
      options["pairs"] = draw.pick<std::string>({"all", "qk", "vo", std::string(option.fallback)});
    } else if (option.name == "keep") {
      options["keep"] = draw.pick<std::string>({"k", "v", "x", "best"});
    }
  }
  return options;
}

enum class End { drawn, other };

enum class Norms { drawn, constant };

void check_seed(uint64_t seed, End end, Norms norms, std::map<std::string, Tally>& tallies) {
  ArchitectureDraw draw(seed);
  const Architecture drawn = draw.draw();
  Architecture architecture = end == End::drawn ? drawn : draw.with_other_end(drawn);
  Tensors tensors = drawn_tensors(architecture, draw, seed);
  if (norms == Norms::constant) {
    make_norms_constant(architecture, tensors);
  }
  Original original{.model = {architecture, as_weights(tensors)},
                    .inputs = random_inputs(architecture, 2, std::min<int64_t>(architecture.context, 6), seed)};
  if (end == End::other && original.inputs.ids.defined()) {  // one row padded behind: where is its last token?
    original.inputs.mask = at::ones_like(original.inputs.ids, at::kBool);
    const int64_t tokens = original.inputs.ids.size(1), kept = tokens / 2;
    original.inputs.mask[1].narrow(0, kept, tokens - kept).fill_(false);
  }
  original.answer = Executor({architecture, original.model.weights}, at::kDouble).forward(original.inputs);
  INFO("seed ", seed, ": ", architecture_to_json(architecture).dump());
  for (const Pass* pass : all_passes()) {
    const PassCall call = call_of(*pass, drawn_options(draw, *pass, architecture));
    if ((pass->id == "fold_constant_norm") != (norms == Norms::constant)) {  // the only one that asks
      continue;
    }
    check_step(original, run_passes(original.model, {call}).steps.at(0), tallies[std::string(pass->id)]);
  }
  // All of them, in a random order: each step starts from what the one before proposed.
  std::vector<PassCall> calls;
  for (const Pass* pass : all_passes()) {
    if (pass->id == "fold_constant_norm" && norms == Norms::drawn) {
      continue;  // it does nothing, and a draw of its own would move all others
    }
    calls.insert(calls.begin() + draw.between(0, static_cast<int64_t>(calls.size())),
                 call_of(*pass, drawn_options(draw, *pass, architecture)));
  }
  const Pipeline pipeline = run_passes(original.model, calls);
  check_tensors(pipeline.after);
  check_same(original, pipeline.after, pipeline.roundings, "all together");
}

}  // namespace

// Seeds that once failed: a constant folded into the bias that a slim cache takes off again (250), collapsed scores,
// which take the inverse from both sides (609, 1630, 2693), blocks run several times, whose errors add up (13540,
// 14422, 14629), a first-layer table beside a tied head (16073, 16460, 18320), originals that lose three digits and
// more by themselves (21906, 24806, 30200), a model whose every logit is zero (215670), a tied head that reads what an
// embedding's LayerNorm wrote and a block that runs twice (766).
TEST_CASE("seeds that once failed") {
  std::map<std::string, Tally> tallies;
  for (uint64_t seed :
       {250, 609, 766, 1630, 2693, 13540, 14422, 14629, 16073, 16460, 18320, 21906, 24806, 30200, 215670}) {
    check_seed(seed, End::drawn, Norms::drawn, tallies);
  }
}

// PARE_DRAWS and PARE_FIRST_SEED ask for others: `make fuzz` runs tens of thousands.
TEST_CASE("every pass on random architectures: refused with reasons, or the same function") {
  const char* draws = std::getenv("PARE_DRAWS");
  const char* first = std::getenv("PARE_FIRST_SEED");
  const uint64_t count = draws ? std::stoull(draws) : 200, begin = first ? std::stoull(first) : 0;
  std::map<std::string, Tally> tallies;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    const End end = seed % 3 == 2 ? End::other : End::drawn;
    check_seed(seed, end, Norms::drawn, tallies);
    if (seed % 4 == 1) {
      check_seed(seed, end, Norms::constant, tallies);
    }
  }
  for (const auto& [id, tally] : tallies) {
    std::cout << fmt::format("{}: {} applied, {} refused, worst error {:.2g} of what is allowed\n", id, tally.applied,
                             tally.refused, tally.worst);
    CHECK_MESSAGE(tally.applied * 20 > static_cast<int64_t>(count), id);  // a test that never applies shows nothing
  }
}

}  // namespace pare::test
