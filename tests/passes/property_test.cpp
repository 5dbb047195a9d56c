// Never silently wrong: every pass on architectures drawn from the whole schema either refuses with reasons, or gives
// the same function in exactly as many parameters as it promised.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/passes/pipeline.h"
#include "tests/passes/random_architecture.h"

namespace pare::test {

namespace {

struct Tally {
  int64_t applied = 0, refused = 0;
  double worst = 0;  // error over what is allowed
};

void check_tensors(const Recipe& after) {
  const std::vector<TensorSpec> table = tensor_table(after.architecture);
  CHECK(after.weights.size() == table.size());
  for (const TensorSpec& spec : table) {
    const auto found = after.weights.find(spec.name);
    REQUIRE_MESSAGE(found != after.weights.end(), spec.name);
    CHECK_MESSAGE(found->second.shape == spec.shape, spec.name);
  }
}

void check_step(const Architecture& before, const at::Tensor& expected, const Inputs& inputs, const PassStep& step,
                Tally& tally) {
  const Proposal& proposal = step.proposal;
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
  const Model model(proposal.after.architecture, proposal.after.weights, at::kDouble);
  const double error = relative_error(answer_of(model.forward(inputs)), expected);
  const double allowed = std::max(1e-12, 100 * unit_roundoff(Dtype::f64) * proposal.condition_sum);
  tally.worst = std::max(tally.worst, error / allowed);
  CHECK_MESSAGE(error <= allowed, fmt::format("{}: error {:.3g}, allowed {:.3g}", text_of(step.call), error, allowed));
  CHECK(count(before).total - count(proposal.after.architecture).total == step.saved_parameters);
}

Options drawn_options(ArchitectureDraw& draw, const Pass& pass, const Architecture& architecture) {
  Options options;
  for (const PassOption& option : pass.options) {
    if (option.name == "target") {
      options["target"] = draw.pick<std::string>({"q", "k", "v", "best"});
    } else if (option.name == "layer" && draw.chance(0.3)) {
      options["layer"] = std::to_string(draw.between(0, static_cast<int64_t>(layer_blocks(architecture).size()) - 1));
    }
  }
  return options;
}

void check_seed(uint64_t seed, std::map<std::string, Tally>& tallies) {
  ArchitectureDraw draw(seed);
  const Architecture architecture = draw.draw();
  const Recipe model{architecture, as_weights(drawn_tensors(architecture, draw, seed))};
  const Inputs inputs = random_inputs(architecture, 2, std::min<int64_t>(architecture.context, 6), seed);
  const at::Tensor expected = answer_of(Model(architecture, model.weights, at::kDouble).forward(inputs));
  INFO("seed ", seed, ": ", architecture_to_json(architecture).dump());
  for (const Pass* pass : all_passes()) {
    const PassCall call = call_of(*pass, drawn_options(draw, *pass, architecture));
    const Pipeline pipeline = run_passes(model, {call});
    check_step(architecture, expected, inputs, pipeline.steps.at(0), tallies[std::string(pass->id)]);
  }
  // All of them, in a random order: each step starts from what the one before proposed.
  std::vector<PassCall> calls;
  for (const Pass* pass : all_passes()) {
    calls.insert(calls.begin() + draw.between(0, static_cast<int64_t>(calls.size())),
                 call_of(*pass, drawn_options(draw, *pass, architecture)));
  }
  const Pipeline pipeline = run_passes(model, calls);
  const Model after(pipeline.after.architecture, pipeline.after.weights, at::kDouble);
  const double error = relative_error(answer_of(after.forward(inputs)), expected);
  CHECK(error <= std::max(1e-12, 100 * unit_roundoff(Dtype::f64) * pipeline.condition_sum));
}

}  // namespace

// PARE_DRAWS and PARE_FIRST_SEED ask for others: `make fuzz` runs tens of thousands.
TEST_CASE("every pass on random architectures: refused with reasons, or the same function") {
  const char* draws = std::getenv("PARE_DRAWS");
  const char* first = std::getenv("PARE_FIRST_SEED");
  const uint64_t count = draws ? std::stoull(draws) : 400, begin = first ? std::stoull(first) : 0;
  std::map<std::string, Tally> tallies;
  for (uint64_t seed = begin; seed < begin + count; ++seed) {
    check_seed(seed, tallies);
  }
  for (const auto& [id, tally] : tallies) {
    std::cout << fmt::format("{}: {} applied, {} refused, worst error {:.2g} of what is allowed\n", id, tally.applied,
                             tally.refused, tally.worst);
    CHECK_MESSAGE(tally.applied * 20 > static_cast<int64_t>(count), id);  // a test that never applies shows nothing
  }
}

}  // namespace pare::test
