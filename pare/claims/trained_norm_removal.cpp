// Norms taken out of a trained model, after which paper 0's theorems apply to it: what that costs in loss, in tokens
// and against as many parameters taken out of the MLP, and what then goes exactly.

#include "pare/claims/trained_claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "pare/arch/architecture_json.h"
#include "pare/arch/presets.h"
#include "pare/claims/comparators.h"
#include "pare/claims/exact_rewrite.h"
#include "pare/claims/plan.h"
#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace {

using nlohmann::json;

// Sizes of a scale. Steps that follow a baseline: few, as many as the headline has, and many.
struct NormRemovalSizes {
  int64_t early_baseline = 0, baseline = 0, longer_baseline = 0, few = 0, usual = 0, many = 0;
  std::vector<int64_t> seeds, widths;
};

NormRemovalSizes sizes_of_norm_removal(ClaimScale scale) {
  switch (scale) {
    case ClaimScale::smoke:
      return {.baseline = 20, .longer_baseline = 30, .few = 5, .usual = 10, .many = 15, .seeds = {0, 1}, .widths = {}};
    case ClaimScale::small:
      return {.early_baseline = 250,
              .baseline = 1000,
              .longer_baseline = 4000,
              .few = 200,
              .usual = 1000,
              .many = 3000,
              .seeds = {0, 1, 2, 3, 4},
              .widths = {256, 768}};
    case ClaimScale::full:
      return {.baseline = 60'000,
              .longer_baseline = 120'000,
              .few = 1200,
              .usual = 6000,
              .many = 18'000,
              .seeds = {0},
              .widths = {}};
  }
  PARE_UNREACHABLE("a scale");
}

// The model that norms are taken out of.
json model_of(const Trial& trial) {
  const json usual = usual_run(trial);
  switch (trial.scale) {
    case ClaimScale::smoke:
      return usual;
    case ClaimScale::small:  // as the pilot: 33k tokens a step, and a baseline that has learnt most of it
      return changed(usual, {{"batch", 64}});
    case ClaimScale::full:  // as paper 0 trained: 490k tokens a step of OpenWebText
      return changed(usual, {{"architecture", architecture_to_json(find_preset("gpt2").value())},
                             {"data", {{"shards", "openwebtext"}}},
                             {"batch", 24},
                             {"accumulate", 20},
                             {"optimiser.lr", 6e-4},
                             {"optimiser.min_lr", 6e-5},
                             {"optimiser.warmup", 2000}});
  }
  PARE_UNREACHABLE("a scale");
}

// Of that many steps; what comes after three fifths of them is there to recover. The same batches for all, and none as
// the baseline had them. `to` is what it becomes, in the words of `morph.to`; nothing: it is trained on as it is.
json further(const json& model, const json& to = {}, int64_t order = 1) {
  const int64_t steps = model.at("steps").get<int64_t>();
  json config = changed(model, {{"data.seed", order},
                                {"optimiser.warmup", std::max<int64_t>(1, steps / 20)},
                                {"evaluate.every", std::max<int64_t>(steps / 5, 1)}});
  if (to.is_null()) {
    return config;
  }
  config = changed(config, {{"morph.to", to}, {"morph.steps", steps * 3 / 5}});
  return to.contains("norms") ? changed(config, {{"morph.evenness", 0.1}}) : config;
}

json with_steps(const json& model, int64_t steps) {
  return changed(model, {{"steps", steps}});
}

PlanForm baseline_form(const std::string& ending, const json& model, int64_t steps) {
  const json config = changed(
      model, {{"steps", steps}, {"optimiser.warmup", std::min<int64_t>(100, steps / 5)}, {"evaluate.every", steps}});
  return {.id = "baseline" + ending, .make = [config](const json&, int64_t) { return config; }};
}

nlohmann::ordered_json look_at_elimination(const std::filesystem::path& folder) {
  return rewritten_exactly(folder, "eliminate_projection");
}

const json no_norms = {{"norms", "none"}}, no_mlp_skips = {{"mlp", {{"skip", false}}}},
           no_norms_no_skips = {{"norms", "none"}, {"mlp", {{"skip", false}}}};

// What a model that was trained becomes.
std::vector<PlanForm> forms_of(const json& model) {
  const auto becoming = [](const std::string& id, const json& to, ConfigChanges more = {}) {
    return PlanForm{.id = id,
                    .make = [=](const json& config, int64_t) { return changed(further(config, to), more); },
                    .starts = true};
  };
  const int64_t width = model.at("architecture").at("width").get<int64_t>();
  std::vector<PlanForm> forms = {
      becoming("control", {}), becoming("norms", no_norms), becoming("norms-and-skips", no_norms_no_skips),
      // As many parameters as one projection of every layer has.
      becoming("smaller-mlp", {{"mlp", {{"width", width * 7 / 2}}}}),
      // Whether tokens of one size matter, which a constant in the place of a norm asks for.
      becoming("norms-evenness-0", no_norms, {{"morph.evenness", 0.0}}),
      becoming("norms-evenness-1", no_norms, {{"morph.evenness", 1.0}}), becoming("norms-teacher", no_norms),
      becoming("no-query", {{"attention", {{"query", "identity"}}}}),
      becoming("no-key", {{"attention", {{"key", "identity"}}}}),
      becoming("no-value", {{"attention", {{"value", "identity"}}}})};
  forms[1].look = forms[2].look = look_at_elimination;
  forms[6].teacher = "baseline";
  // From the model without norms: on as it is; the skips fade; or they become neurons, exactly, and these fade.
  const json bare = changed(model, {{"architecture.final_norm", nullptr},
                                    {"architecture.blocks.*.attention.norm", nullptr},
                                    {"architecture.blocks.*.mlp.norm", nullptr}});
  const json wide =
      changed(bare, {{"architecture.blocks.*.mlp.skip", false}, {"architecture.blocks.*.mlp.width", 6 * width}});
  const auto after_norms = [](const std::string& id, const json& before, const json& to) {
    return PlanForm{
        .id = "after-norms-" + id,
        .make = [=](const json& config,
                    int64_t) { return further(with_steps(before, config.at("steps").get<int64_t>()), to, 2); },
        .from = "norms"};
  };
  forms.push_back(after_norms("control", bare, {}));
  forms.push_back(after_norms("skips", bare, no_mlp_skips));
  forms.push_back(after_norms("widened", wide, {{"mlp", {{"width", 4 * width}}}}));
  forms.back().passes = "absorb_skip{widen=true}";
  forms.back().look = look_at_elimination;
  return forms;
}

// What variants of a model are called that others trained.
const std::string stories = "-stories260K", stories_longer = "-stories260K-longer",
                  stories_recovered = "-stories260K-recovered";

// A model that others trained, small enough for a CPU. Its weights are given, so seeds are those of the order. The ids
// are those of experiments/norm-removal/stories.py.
std::vector<PlanForm> forms_of_stories() {
  const json model = {{"from", "stories260K"},
                      {"data", {{"train", {"tinystories.u16"}}, {"format", "uint16"}}},
                      {"context", 96},
                      {"batch", 8},
                      {"optimiser", {{"lr", 5e-4}, {"min_lr", 1e-4}}},
                      {"checkpoint", {{"every", 100'000}, {"keep", 1}}}};
  constexpr int64_t usual = 1600, longer = 6400;
  const auto made = [&](const std::string& id, int64_t steps, ConfigChanges more) {
    const json config = with_steps(model, steps);
    return PlanForm{
        .id = id,
        .make = [=](const json&,
                    int64_t seed) { return changed(further(config, more.empty() ? json() : no_norms, seed), more); },
        .rates = {5e-4}};
  };
  // Trained to its end and with gated MLPs, it needs tokens of one size more than a model that still learns: with 1 and
  // less the loss was seen to explode at step 860 of 960. Four times the steps: for norms that go as slowly, or as
  // quickly as before, with the rest to recover.
  return {made("control" + stories, usual, {}), made("norms" + stories, usual, {{"morph.evenness", 5.0}}),
          made("control" + stories_longer, longer, {}),
          made("norms" + stories_longer, longer, {{"morph.evenness", 5.0}}),
          made("norms" + stories_recovered, longer, {{"morph.evenness", 5.0}, {"morph.steps", usual * 3 / 5}})};
}

// The same model, trained on as it is and with its norms gone.
struct NormSetting {
  std::string words, ending;            // of the variants' names
  std::string control_ending = ending;  // of the one that was trained on
};

std::vector<NormSetting> norm_settings(ClaimScale scale) {
  const NormRemovalSizes sizes = sizes_of_norm_removal(scale);
  std::vector<NormSetting> found = {{with_commas(sizes.usual) + " steps", ""},
                                    {with_commas(sizes.few) + " steps", "-few"},
                                    {with_commas(sizes.many) + " steps", "-many"},
                                    {fmt::format("after {} steps", with_commas(sizes.longer_baseline)), "-longer"},
                                    {"12 layers", "-layers-12"},
                                    {fmt::format("after {} steps of larger batches", sizes.early_baseline), "-early"},
                                    {"stories260K", stories},
                                    {"stories260K, slowly, 6,400 steps", stories_longer},
                                    {"stories260K, quickly, 6,400 steps", stories_recovered, stories_longer}};
  for (const int64_t width : sizes.widths) {
    found.push_back({fmt::format("width {}", width), fmt::format("-width-{}", width)});
  }
  return found;
}

// How many seeds came to an end trained on as they were, and to none at that rate or another without norms.
int64_t seeds_lost(const TrainedRuns& runs, const std::string& control, const std::string& without) {
  const auto has = [](const std::vector<const TrainedRun*>& all, int64_t seed, std::optional<double> rate) {
    return std::any_of(all.begin(), all.end(),
                       [&](const TrainedRun* run) { return run->seed == seed && (!rate || run->rate == *rate); });
  };
  std::set<int64_t> seeds;
  for (const TrainedRun* run : runs.stopped(without)) {
    if (has(runs.ended(control), run->seed, run->rate) && !has(runs.ended(without), run->seed, {})) {
      seeds.insert(run->seed);
    }
  }
  return std::ssize(seeds);
}

// A seed that is lost is a cost that has no number.
ClaimFinding cost_in(const NormSetting& setting, const TrainedRuns& runs) {
  const std::string control = "control" + setting.control_ending, without = "norms" + setting.ending;
  if (const int64_t lost = seeds_lost(runs, control, without); lost > 0) {
    return {setting.words, runs.ended(control).size() > 1 ? Found::fails : Found::too_few,
            fmt::format("{} of {} seeds stopped", lost, runs.ended(control).size())};
  }
  return equal_within(setting.words, loss_above_at_common_rates(runs, without, control), least_cost);
}

std::string goes_exactly(const nlohmann::ordered_json& eliminated) {
  if (eliminated.contains("refused")) {
    return "refused";
  }
  const int64_t before = eliminated.at("before").get<int64_t>(), after = eliminated.at("after").get<int64_t>();
  return fmt::format("{} fewer, {:.2f} %: {}", with_commas(before - after),
                     100.0 * static_cast<double>(before - after) / static_cast<double>(before),
                     eliminated.at("verdict").get<std::string>());
}

ClaimTable table_of_settings(const std::vector<NormSetting>& settings, const TrainedRuns& runs) {
  ClaimTable table{.title = "What norms cost to remove, in nats a token",
                   .columns = {"trained on", "norms gone", "difference", "±", "pairs"},
                   .measured = "loss above that of the model trained on, nats a token",
                   .settings = {"trained on", "norms gone", "pairs"},
                   .rows_are = "setting",
                   .decimals = 4,
                   .band = interval_of_pairs};
  for (const NormSetting& setting : settings) {
    const std::string control = "control" + setting.control_ending, without = "norms" + setting.ending;
    const Estimate above = loss_above_at_common_rates(runs, without, control);
    if (above.count == 0) {
      continue;
    }
    table.names.push_back(setting.words);
    table.rows.push_back({runs.best(control)->loss, runs.best(without)->loss, above.mean,
                          above.interval ? above.half_width() : std::nan(""), static_cast<double>(above.count)});
  }
  return table;
}

// What the change costs in tokens: the same after few, more and many steps.
ClaimTable table_of_steps(const NormRemovalSizes& sizes, const TrainedRuns& runs) {
  const std::vector<std::pair<std::string, std::string>> variants = {{"control", "trained on"},
                                                                     {"norms", "norms gone"},
                                                                     {"norms-and-skips", "norms and MLP skips gone"},
                                                                     {"smaller-mlp", "smaller MLP"}};
  ClaimTable table{.title = "Loss by steps that followed the baseline or its repetition",
                   .columns = {"steps"},
                   .measured = "validation loss, nats a token",
                   .decimals = 4};
  for (const auto& [variant, words] : variants) {
    table.columns.push_back(words);
  }
  for (const auto& [steps, ending] :
       {std::pair(sizes.few, "-few"), std::pair(sizes.usual, ""), std::pair(sizes.many, "-many")}) {
    std::vector<double> row = {static_cast<double>(steps)};
    for (const auto& [variant, words] : variants) {
      const std::optional<Settled> best = runs.best(variant + ending);
      row.push_back(best ? best->loss : std::nan(""));
    }
    if (std::any_of(row.begin() + 1, row.end(), [](double loss) { return !std::isnan(loss); })) {
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

// A point for each variant: what it lost in parameters, what the run's end can still lose exactly included.
Figure loss_by_parameters(const TrainedRuns& runs, const std::vector<std::string>& variants) {
  Figure figure{.kind = FigureKind::scatter, .title = "Loss against parameters removed"};
  figure.words =
      "Of all variants after as many steps on the same batches. Parameters that go exactly once the norms are "
      "gone count as removed.";
  figure.x = {.words = "parameters removed"};
  figure.y = {.words = "validation loss", .unit = "nats a token"};
  const std::optional<Settled> control = runs.best("control");
  for (const std::string& variant : variants) {
    const std::optional<Settled> best = runs.best(variant);
    if (!control || !best) {
      continue;
    }
    int64_t parameters = best->parameters;
    for (const TrainedRun* run : best->runs) {
      if (run->seen.is_object() && run->seen.contains("after")) {
        parameters = run->seen.at("after").get<int64_t>();
      }
    }
    figure.series.push_back({.name = variant,
                             .x = {static_cast<double>(control->parameters - parameters)},
                             .y = {best->loss},
                             .labels = {variant}});
  }
  return figure;
}

}  // namespace

std::vector<PlannedRun> plan_norm_removal(const Trial& trial) {
  const NormRemovalSizes sizes = sizes_of_norm_removal(trial.scale);
  const json model = model_of(trial), usual = usual_run(trial);
  const std::vector<double> rates = {model.at("optimiser").at("lr").get<double>(), 2e-3};
  PlanTable table{.forms = forms_of(model)};
  const auto add_condition = [&](const std::string& ending, const json& config, int64_t steps,
                                 const std::string& start) {
    table.conditions.push_back(
        {.ending = ending, .config = with_steps(config, steps), .rates = rates, .start = "baseline" + start});
  };
  add_condition("", model, sizes.usual, "");
  add_condition("-few", model, sizes.few, "");
  table.forms.push_back(baseline_form("", model, sizes.baseline));
  const std::vector<std::string> pair = {"control", "norms"},
                                 headline = {"baseline", "control", "norms", "norms-and-skips", "smaller-mlp"};
  table.lines = {{.forms = headline, .seeds = sizes.seeds},
                 {.forms = {"norms-evenness-0", "norms-evenness-1", "norms-teacher"}},
                 {.forms = pair, .conditions = {"-few"}},
                 {.forms = {"no-query", "no-key", "no-value"}},
                 {.forms = {"after-norms-control", "after-norms-skips", "after-norms-widened"}}};
  if (trial.scale != ClaimScale::small) {
    return planned_runs(table);
  }
  add_condition("-many", model, sizes.many, "");
  add_condition("-longer", model, sizes.usual, "-longer");
  table.forms.push_back(baseline_form("-longer", model, sizes.longer_baseline));
  // From a model that has hardly begun: as many tokens, in a quarter of the steps.
  add_condition("-early", usual, sizes.usual, "-early");
  table.forms.push_back(baseline_form("-early", usual, sizes.early_baseline));
  std::vector<std::string> of_size;
  const auto add_size = [&](const std::string& ending, const ConfigChanges& changes) {
    add_condition(ending, changed(model, changes), sizes.usual, ending);
    table.forms.push_back(baseline_form(ending, changed(model, changes), sizes.baseline));
    of_size.push_back(ending);
  };
  for (const int64_t width : sizes.widths) {
    add_size(fmt::format("-width-{}", width), {{"architecture.width", width},
                                               {"architecture.blocks.*.attention.heads", width / 64},
                                               {"architecture.blocks.*.mlp.width", 4 * width}});
  }
  add_size("-layers-12", {{"architecture.blocks.0.repeat", 12}});
  for (PlanForm& form : forms_of_stories()) {
    table.forms.push_back(std::move(form));
  }
  const auto add_pairs = [&](const std::vector<std::string>& endings, const std::vector<int64_t>& seeds) {
    for (const int64_t seed : seeds) {
      for (const std::string& ending : endings) {
        table.lines.push_back({.forms = {"baseline" + ending}, .seeds = {seed}});
        table.lines.push_back({.forms = pair, .conditions = {ending}, .seeds = {seed}});
      }
    }
  };
  table.lines.push_back({.forms = {"control" + stories, "norms" + stories}, .seeds = {0, 1, 2}});
  table.lines.push_back({.forms = {"control" + stories_longer, "norms" + stories_longer, "norms" + stories_recovered}});
  std::vector<std::string> larger = of_size;
  larger.push_back("-longer");
  add_pairs(larger, {0});
  table.lines.push_back({.forms = {"control", "norms", "norms-and-skips", "smaller-mlp"}, .conditions = {"-many"}});
  table.lines.push_back({.forms = pair, .conditions = {"-few"}, .seeds = {1, 2}});
  add_pairs(larger, {1});
  table.lines.push_back({.forms = pair, .rates = {1}, .seeds = {0, 1}});  // whether another rate would decide otherwise
  table.lines.push_back({.forms = {"baseline-early"}});
  table.lines.push_back({.forms = {"control", "norms", "norms-and-skips", "smaller-mlp"}, .conditions = {"-early"}});
  return planned_runs(table);
}

Outcome judge_norm_removal(const Trial& trial, const TrainedRuns& runs) {
  Outcome found;
  const std::vector<NormSetting> settings = norm_settings(trial.scale);
  ClaimFindings findings{cost_in(settings.front(), runs)};
  findings.headline.what = "norms gone, " + findings.headline.what;
  for (const NormSetting& setting : settings) {
    const ClaimFinding cost = cost_in(setting, runs);
    if (cost.words == ClaimFinding().words) {
      continue;
    }
    const Estimate above =
        loss_above_at_common_rates(runs, "norms" + setting.ending, "control" + setting.control_ending);
    found.compared.push_back({fmt::format("no norms, {}", setting.words), "minimal",
                              cost.found == Found::fails && above.count == 0 ? cost.words : in_short(above)});
    if (&setting != &settings.front()) {
      findings.further.push_back(cost);
    }
  }
  for (const TrainedRun& run : runs.all()) {
    if (run.seen.is_object()) {
      found.compared.push_back({run.variant + ": goes exactly", "yes", goes_exactly(run.seen)});
    }
    if (!run.stopped.empty()) {
      found.compared.push_back({fmt::format("{}, seed {}", run.variant, run.seed), "trains", "stopped"});
    }
  }
  const std::vector<std::string> headline = {"control",         "norms",      "norms-evenness-0", "norms-evenness-1",
                                             "norms-teacher",   "no-query",   "no-key",           "no-value",
                                             "norms-and-skips", "smaller-mlp"};
  const std::vector<std::string> after = {"after-norms-control", "after-norms-skips", "after-norms-widened"};
  found.tables = {table_of_settings(settings, runs),
                  table_of_variants("From the baseline or its repetition, on the same batches", runs, headline),
                  table_of_variants("From the model without norms: its MLP skips go too", runs, after),
                  table_of_steps(sizes_of_norm_removal(trial.scale), runs)};
  std::erase_if(found.tables, [](const ClaimTable& table) { return table.rows.empty(); });
  found.figures = {differences_of_variants("Loss above that of the model trained on", runs, headline),
                   loss_by_parameters(runs, headline)};
  std::erase_if(found.figures, [](const Figure& figure) { return figure.series.empty(); });
  if (found.compared.empty()) {
    found.compared.push_back({"no norms", "minimal", "not trained"});
  }
  found.how =
      " of the baseline that norms are taken out of, and the order of the data is one for all; but of stories260K, "
      "whose "
      "weights are given, they are those of the order";
  decide(trial.scale, findings, found);
  return found;
}

std::vector<PaperClaim> claims_of_norm_removal() {
  return {trained_claim(
      {.id = "norm-removal",
       .paper = Paper::query_elimination,
       .place = "Remark 2",
       .says =
           "Norms can be taken out of a trained model with minimal degradation, and then a projection goes exactly.",
       .recorded = ClaimVerdict::holds_corrected,
       .cost_in_full = "40 hours on one H200: GPT-2 124M on 29.5B tokens of OpenWebText (18.5 h at 442k tokens/s), and "
                       "eleven times 2.9B tokens from there"},
      plan_norm_removal, judge_norm_removal)};
}

}  // namespace pare
