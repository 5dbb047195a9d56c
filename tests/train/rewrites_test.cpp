// A variant that is trained from the exact rewrite of another's start begins as the same function: for every pass, the
// executor that trains gives the same logits and the same loss before the first step.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "pare/rewrite/pipeline.h"
#include "pare/train/initialise.h"
#include "pare/train/trainer.h"
#include "tests/model/helpers.h"
#include "tests/train/variants.h"

namespace pare::test {

namespace {

struct Start {
  std::string pass;  // with its options
  std::vector<std::string> settings;
};

// For each pass a model whose start it rewrites.
std::vector<Start> rewritten_starts() {
  const std::string block = "architecture.blocks.*.", attention = block + "attention.", mlp = block + "mlp.";
  const std::string untied = "architecture.head.tied=false", no_positions = "architecture.embedding.position=none";
  const std::string all_biases = attention + R"(bias={"query":true,"key":true,"value":true,"output":true})";
  const std::vector<std::string> bare = {attention + "norm=null", mlp + "norm=null", "architecture.final_norm=null",
                                         "init.recipe=norm_free"};
  const auto with = [](std::vector<std::string> settings, const std::vector<std::string>& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  };
  const std::vector<std::string> skipless = with(bare, {attention + "skip=false", mlp + "skip=false"});
  const std::string rms = R"(norm={"kind":"rms","gain":false})";
  const std::string constant = R"(norm={"kind":"layer","epsilon":1e28})";
  return {
      {"fold_constant_norm", {attention + constant, mlp + constant}},
      {"fold_norm_gain", {untied, all_biases, mlp + R"(bias={"up":true,"down":true})"}},
      {"center_layer_norm", {untied}},
      {"drop_key_bias", {all_biases}},
      {"fold_value_bias", {all_biases}},
      {"eliminate_projection{target=q}", with(bare, {mlp + "skip=false"})},
      {"eliminate_projection{target=v}", with(bare, {mlp + "skip=false", attention + "shaped=true"})},
      {"merge_skipless", skipless},
      {"merge_skipless{target=v}", with(skipless, {attention + "shaped=true"})},
      {"collapse_heads{pairs=all}", {attention + "shaped=true"}},
      {"gauge_heads", {attention + "shaped=true"}},
      {"shrink_head_pairs", {attention + "shaped=true"}},
      {"rotate_residual", {untied, attention + rms, mlp + rms, "architecture.final_" + rms}},
      {"absorb_skip{widen=true}", bare},
      {"absorb_skip{widen=true}", with(bare, {mlp + "gated=true"})},
      {"lower_mlp_to_heads", {mlp + "activation=silu"}},
      {"cache_keys_only", {attention + "shaped=true"}},
      {"precompute_first_layer", {no_positions, attention + "shaped=true"}},
  };
}

// A start, moved a little, so that no gain is one and no bias zero.
Model moved_start(const TrainConfig& config, const Inputs& sample) {
  const Model start = initial_model(config, sample);
  at::manual_seed(11);
  Tensors tensors;
  for (const auto& [name, weight] : start.weights) {
    const at::Tensor value = weight.load();
    tensors[name] = value + 0.1 * at::randn_like(value);
  }
  return {start.architecture, as_weights(tensors)};
}

TrainConfig config_of(const Start& start, const Architecture* architecture = nullptr) {
  TrainConfig config = config_of(Variant{start.pass, start.settings});
  config.dtype = TrainDtype::float64;
  config.architecture = architecture ? *architecture : config.architecture;
  return config;
}

}  // namespace

TEST_CASE("what is rewritten before training begins as the same function") {
  std::map<std::string, int> seen;
  for (const Start& start : rewritten_starts()) {
    CAPTURE(start.pass);
    const TrainConfig config = config_of(start);
    const Batches batches(open_sequences(config), config);
    const std::vector<TrainBatch> some = {batches.training(0)};
    const Model before = moved_start(config, some[0].inputs);
    const Pipeline pipeline = run_passes(before, parse_passes(start.pass));
    REQUIRE(pipeline.steps.at(0).proposal.applies);
    ++seen[std::string(pipeline.steps[0].call.pass->id)];
    const Model& after = pipeline.after;
    CHECK(!(after.architecture == before.architecture && start.pass != "gauge_heads" &&
            !start.pass.starts_with("rotate_residual")));

    Trainer original(config, before, at::kCPU), variant(config_of(start, &after.architecture), after, at::kCPU);
    const double first = original.measure(some).loss, second = variant.measure(some).loss;
    CHECK(second == doctest::Approx(first).epsilon(1e-11));
    const at::NoGradGuard no_grad;
    const at::Tensor logits = original.executor().forward(some[0].inputs).logits;
    CHECK(relative_error(variant.executor().forward(some[0].inputs).logits, logits) < 1e-10);
    variant.begin_step(some, {1e-2});  // and it does train: the first step moves it
    CHECK(relative_error(variant.executor().forward(some[0].inputs).logits, logits) > 1e-5);
  }
  for (const Pass* pass : all_passes()) {
    CHECK_MESSAGE(seen.contains(std::string(pass->id)), pass->id);
  }
}

}  // namespace pare::test
