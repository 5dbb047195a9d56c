// Paper 2, Section 5: a model whose neurons are attention heads, trained. Beside the MLP that it equals it starts as
// the same function, and then ought to have the same losses; drawn anew it ought to come as far. The paper leaves open
// what a step costs.

#include "pare/claims/trained_claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/checkpoint/model_folder.h"
#include "pare/claims/judged.h"
#include "pare/claims/plan.h"
#include "pare/model/device.h"
#include "pare/rewrite/rewrite.h"
#include "pare/support/error.h"
#include "pare/train/run_folder.h"
#include "pare/train/train.h"

namespace pare {

namespace {

const std::string mlps = "mlp", heads = "heads", exact_mlps = "mlp-float64";

// Of steps after the first tenth, in which a GPU makes ready.
double seconds_a_step(const std::filesystem::path& run) {
  std::vector<double> passed;  // since the run began, at each step
  for (const nlohmann::json& line : read_metrics(run)) {
    if (line.contains("loss")) {
      passed.push_back(line.at("seconds").get<double>());
    }
  }
  const size_t first = passed.size() / 10;
  return passed.size() < 2 ? 0 : (passed.back() - passed[first]) / static_cast<double>(passed.size() - 1 - first);
}

std::vector<double> losses_of(const std::filesystem::path& run) {
  std::vector<double> losses;
  for (const nlohmann::json& line : read_metrics(run)) {
    if (line.contains("loss")) {
      losses.push_back(line.at("loss").get<double>());
    }
  }
  return losses;
}

// The start of a finished run with its neurons turned into heads, and trained as the run was: the same batches in the
// same order. Hands back how far the losses of the two are apart, and what a step of each costs.
nlohmann::ordered_json trained_as_heads(const std::filesystem::path& run, const std::string& device) {
  const std::filesystem::path start = run / "start-as-heads", again = run / "trained-as-heads";
  nlohmann::json config = read_run_json(run, "config.json");
  const ModelFolder source = open_model(run / "checkpoints" / "0");
  rewrite(source, start, {.passes = parse_passes("lower_mlp_to_heads"), .force = true});
  config.erase("architecture");
  config["from"] = start.string();
  const TrainConfig as_heads = train_config_from_json(config, "as heads", [](const std::string& word) -> Architecture {
    throw InternalError("no Architecture is named in a stored configuration: " + word);
  });
  std::filesystem::remove_all(again);
  train(as_heads, SequencesCache().open(as_heads), {.folder = again, .device = find_device(device)});
  const std::vector<double> as_mlps_losses = losses_of(run), as_heads_losses = losses_of(again);
  double apart = 0;
  for (size_t i = 0; i < std::min(as_mlps_losses.size(), as_heads_losses.size()); ++i) {
    apart = std::max(apart, std::abs(as_mlps_losses[i] - as_heads_losses[i]));
  }
  return {{"steps", as_heads_losses.size()},
          {"largest_difference", apart},
          {"first_difference", std::abs(as_mlps_losses.at(0) - as_heads_losses.at(0))},
          {"last", as_mlps_losses.back()},
          {"last_as_heads", as_heads_losses.back()},
          {"seconds_a_step", seconds_a_step(run)},
          {"seconds_a_step_as_heads", seconds_a_step(again)}};
}

std::vector<PlannedRun> plan_attention_only(const Trial& trial) {
  const bool smoke = trial.scale == ClaimScale::smoke;
  constexpr double rate = 2e-3;
  // Without decay: a head keeps a neuron's bias in the row of its query, and rows decay where biases do not.
  const nlohmann::json base =
      changed(usual_run(trial), {{"architecture.blocks.*.mlp.activation", "silu"},
                                 {"architecture.blocks.*.mlp.bias", {{"up", true}, {"down", true}}},
                                 {"optimiser.lr", rate},
                                 {"optimiser.decay", 0.0},
                                 {"checkpoint.keep", 0}});
  const nlohmann::json as_mlps = smoke ? base : changed(base, {{"steps", 400}, {"evaluate.every", 200}});
  const int64_t width = base.at("architecture").at("blocks").at(0).at("mlp").at("width").get<int64_t>();
  nlohmann::json neurons = base.at("architecture").at("blocks").at(0).at("mlp");
  neurons.erase("activation");
  neurons["kind"] = "heads";
  neurons["width"] = width;
  neurons["shared_value"] = true;
  neurons["bias"] = {{"down", true}};
  const nlohmann::json as_heads = changed(as_mlps, {{"architecture.blocks.*.mlp", neurons}});
  nlohmann::json exact = changed(as_mlps, {{"dtype", "float64"}});
  if (!smoke) {
    exact = changed(exact, {{"batch", 16}, {"steps", 200}});
  }
  const auto look = [device = trial.device](const std::filesystem::path& run) { return trained_as_heads(run, device); };
  PlanTable table{.forms = {fixed_form(exact_mlps, exact), fixed_form(mlps, as_mlps), fixed_form(heads, as_heads)},
                  .conditions = {{.ending = "", .rates = {rate}}},
                  .lines = {{.forms = {exact_mlps}}, {.forms = {mlps, heads}}}};
  table.forms[0].look = table.forms[1].look = look;
  if (!smoke) {
    table.lines.push_back({.forms = {mlps, heads}, .seeds = {1, 2}});
  }
  return planned_runs(table);
}

Outcome judge_attention_only(const Trial& trial, const TrainedRuns& runs) {
  const auto looked_at = [&](const std::string& variant) -> const TrainedRun* {
    for (const TrainedRun* run : runs.ended(variant)) {
      if (run->seen.contains("largest_difference")) {
        return run;
      }
    }
    return nullptr;
  };
  const TrainedRun *exact = looked_at(exact_mlps), *usual = looked_at(mlps);
  constexpr double rounding = 1e-6;  // of losses in float64 that some hundred steps have passed on
  const auto difference = [](const char* what, const TrainedRun* run) {
    const std::string words = fmt::format("largest loss difference, {}, {} steps", what, run ? run->steps : 0);
    return run ? exact_limit(words, run->seen["largest_difference"].get<double>(), {Bound::at_most, rounding},
                             [](double number) { return fmt::format("{:.1e}", number); })
               : ClaimFinding{words};
  };
  ClaimSheet sheet{
      .losses = {{.title = "Validation loss",
                  .rows = {{"MLPs", mlps}, {"heads, new initial weights", heads, mlps, "as good", ClaimRole::further}},
                  .curves = "Validation loss while training"}},
      .rows = {{difference("float64", exact), "0", ClaimRole::headline}, {difference("as usual", usual), "0"}}};
  if (usual) {
    const double before = usual->seen.at("seconds_a_step").get<double>(),
                 after = usual->seen.at("seconds_a_step_as_heads").get<double>();
    sheet.rows.push_back({{"time of a step, heads over MLPs", Found::too_few,
                           fmt::format("{:.2f} ({:.3g} / {:.3g} ms)", after / before, 1e3 * after, 1e3 * before)},
                          "more"});
  }
  return judged(trial.scale, runs, sheet);
}

}  // namespace

std::vector<PaperClaim> claims_of_trained_heads() {
  return {
      trained_claim({.id = "attention-only",
                     .paper = Paper::attention_only,
                     .place = "Section 5",
                     .says = "An attention-only transformer can be trained to match one with MLPs.",
                     .recorded = ClaimVerdict::holds,
                     .number = "off by 2.4e-10; a step costs 2.65 times",
                     .cost_in_full = "1.6 hours of one H200 for each run with MLPs of GPT-2 124M on 2.5 billion tokens",
                     .paper_trained = false,
                     .plan = plan_attention_only,
                     .judge = judge_attention_only})};
}

}  // namespace pare
