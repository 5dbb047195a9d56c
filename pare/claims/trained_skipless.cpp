// Paper 1, Figures 1, 3 and 4: which forms without skips, norms, and without Q and P (or K and P, V and P) train, how
// far behind a usual model they stay, and whether what was trained merges exactly.

#include "pare/claims/trained_claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/claims/finished_run.h"
#include "pare/claims/judged.h"
#include "pare/claims/plan.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

// A figure of the paper as settings of a block.
struct Figured {
  std::string id;
  ConfigChanges block;      // without architecture.blocks.*. before them
  bool norm_free = true;    // nor a final norm; another start
  bool mergeable = false;   // its Q and P can be merged exactly
  bool figure_one = false;  // of which the claim speaks
};

ConfigChanges together(ConfigChanges changes, const ConfigChanges& more) {
  changes.insert(changes.end(), more.begin(), more.end());
  return changes;
}

std::vector<Figured> figured_forms() {
  const ConfigChanges bare = {{"attention.norm", nullptr}, {"mlp.norm", nullptr}, {"attention.skip", false}};
  const ConfigChanges serial = together(bare, {{"mlp.skip", false}}),
                      parallel = together(bare, {{"wiring", "parallel"}});
  const auto without = [](const std::string& slot) {
    // What becomes the identity has no bias either.
    nlohmann::json bias = {{"query", true}, {"key", true}, {"value", true}};
    bias.erase(slot);
    return ConfigChanges{{"attention." + slot, "identity"}, {"attention.output", "identity"}, {"attention.bias", bias}};
  };
  const ConfigChanges no_query = without("query"), no_key = without("key"), no_value = without("value");
  return {
      {"fig1a", serial, true, true, true},
      {"fig1b", together(serial, no_query), true, false, true},
      {"fig1c", together(serial, no_key), true, false, true},
      {"fig1d", together(serial, no_value), true, false, true},
      {"fig3a", together(parallel, no_query)},
      {"fig3b", together(parallel, no_key)},
      {"fig3c", together(parallel, no_value)},
      {"fig4a", no_query, false},
      {"fig4b", together(no_query, {{"wiring", "parallel"}, {"mlp.norm", nullptr}}), false},
  };
}

std::string id_of(const Figured& form, bool shaped) {
  return form.id + (shaped ? "-shaped" : "");
}

std::string ending_of(int64_t layers) {
  return fmt::format("-{}layers", layers);
}

PlanForm plan_form(const Figured& form, bool shaped) {
  ConfigChanges changes;
  for (const auto& [key, value] : form.block) {
    changes.emplace_back("architecture.blocks.*." + key, value);
  }
  if (shaped) {
    changes.emplace_back("architecture.blocks.*.attention.shaped", true);
  }
  if (form.norm_free) {
    changes.emplace_back("architecture.final_norm", nullptr);
    changes.emplace_back("init.recipe", "orthogonal");
  }
  PlanForm found = form_of(id_of(form, shaped), "", changes);
  found.rates = form.norm_free ? std::vector<double>{1e-3, 5e-4, 2e-3} : std::vector<double>{2e-3};
  if (form.mergeable) {
    found.look = [](const std::filesystem::path& folder) { return rewritten_exactly(folder, "merge_skipless"); };
  }
  return found;
}

int64_t shallow_of(ClaimScale scale) {
  return scale == ClaimScale::smoke ? 2 : 6;
}

std::vector<PlannedRun> plan_skipless(const Trial& trial) {
  const bool smoke = trial.scale == ClaimScale::smoke;
  // Without norms a stream of deviation one would meet a tied table in logits far too large: the head is of its own.
  const nlohmann::json usual = changed(short_run(trial), {{"architecture.head.tied", false}});
  const nlohmann::json base = smoke ? changed(usual, {{"steps", 6}, {"evaluate.every", 3}}) : usual;
  const int64_t layers = shallow_of(trial.scale);
  PlanTable table{.forms = {{.id = "baseline", .rates = {2e-3, 1e-3}}}};
  for (const int64_t depth : {layers, 2 * layers}) {
    table.conditions.push_back(
        {.ending = ending_of(depth), .config = changed(base, {{"architecture.blocks.*.repeat", depth}})});
  }
  std::vector<std::string> serial, shaped_serial, parallel, with_norms, shaped_with_norms;
  for (const bool shaped : {false, true}) {
    for (const Figured& form : figured_forms()) {
      table.forms.push_back(plan_form(form, shaped));
      std::vector<std::string>& group = !form.norm_free    ? (shaped ? shaped_with_norms : with_norms)
                                        : !form.figure_one ? parallel
                                        : shaped           ? shaped_serial
                                                           : serial;
      group.push_back(id_of(form, shaped));
    }
  }
  std::vector<std::string> figure_one = serial;
  figure_one.insert(figure_one.end(), shaped_serial.begin(), shaped_serial.end());
  const std::vector<std::string> shallow = {ending_of(layers)}, deep = {ending_of(2 * layers)},
                                 both = {shallow[0], deep[0]};
  table.lines = {{.forms = {"baseline"}, .conditions = both},
                 {.forms = figure_one, .conditions = shallow},
                 {.forms = with_norms, .conditions = shallow},
                 {.forms = figure_one, .conditions = deep},
                 {.forms = parallel, .conditions = shallow}};
  if (!smoke) {
    table.lines.insert(table.lines.begin() + 2, {{.forms = {"baseline"}, .conditions = shallow, .seeds = {1, 2}},
                                                 {.forms = shaped_serial, .conditions = shallow, .seeds = {1, 2}}});
    table.lines.insert(table.lines.end(), {{.forms = figure_one, .conditions = deep, .rates = {1}},
                                           {.forms = figure_one, .conditions = shallow, .rates = {1}},
                                           {.forms = with_norms, .conditions = deep},
                                           {.forms = shaped_with_norms, .conditions = both},
                                           {.forms = parallel, .conditions = both, .rates = {1}},
                                           {.forms = parallel, .conditions = deep},
                                           {.forms = {"baseline"}, .conditions = both, .rates = {1}},
                                           {.forms = figure_one, .conditions = shallow, .rates = {2}},
                                           {.forms = serial, .conditions = shallow, .seeds = {1, 2}}});
  }
  return planned_runs(table);
}

// Who comes three quarters of the way of the usual model of as many layers, from its first loss to its last, trains.
// One that has learnt nothing but how frequent each byte is has come half of it.
double bar_of(const Settled& usual) {  // no number where its first loss is not known
  const TrainedRun& run = *usual.runs.front();
  const auto start = run.validation.find(0);
  return start == run.validation.end() ? std::nan("") : start->second / 4 + 3 * usual.loss / 4;
}

// It does where the losses of its seeds are below the bar for all of their interval; it does not where none of several
// runs was, at whatever rate: one rate more may still do where there was one.
ClaimFinding trains(const TrainedRuns& runs, const std::string& variant, const std::string& words, double bar) {
  const std::vector<const TrainedRun*> stopped = runs.stopped(variant), ended = runs.ended(variant);
  const Found none = ended.size() + stopped.size() > 1 ? Found::fails : Found::too_few;
  const std::optional<Settled> best = runs.best(variant);
  if (!best && stopped.empty()) {
    return {words};
  }
  if (!best) {
    const TrainedRun& slowest =
        **std::ranges::min_element(stopped, [](const TrainedRun* a, const TrainedRun* b) { return a->rate < b->rate; });
    const std::string rate = fmt::format("lr {:g}{}", slowest.rate, stopped.size() > 1 ? "" : " only");
    return {words, none,
            diverged(slowest) ? fmt::format("diverges to {:.2f}, {}", slowest.loss, rate)
                              : fmt::format("explodes at step {}, {}", slowest.steps, rate)};
  }
  if (std::isnan(bar)) {
    return {words, Found::too_few, fmt::format("{:.4f}", best->loss)};
  }
  const std::vector<double> losses = mapped(best->runs, &TrainedRun::loss);
  const bool some = std::ranges::any_of(ended, [bar](const TrainedRun* run) { return run->loss < bar; });
  const Found found =
      some ? threshold("", estimate_of(losses), {Bound::at_most, bar}, [](double) { return std::string(); }).found
           : none;
  const double least = least_loss(*best->runs.front());
  const int64_t lost = std::ranges::count_if(stopped, [&](const TrainedRun* run) { return run->rate == best->rate; });
  return {words, found,
          fmt::format("{}{}{}", best->loss < bar ? "yes" : "no",
                      best->loss >= bar && least < bar ? fmt::format(", {:.2f} before", least) : "",
                      lost > 0 ? fmt::format(", {} more stopped", lost) : "")};
}

// The forms of one depth, with plain or shaped attention: whether each trains, whether all of figure 1 do, and what
// merges.
ClaimFinding add_forms(const TrainedRuns& runs, int64_t layers, bool shaped, ClaimSheet& sheet) {
  const std::string reference = "baseline" + ending_of(layers);
  const std::optional<Settled> baseline = runs.best(reference);
  const double bar = baseline ? bar_of(*baseline) : std::nan("");
  const std::string group = fmt::format("{} attention, {} layers", shaped ? "shaped" : "plain", layers);
  std::vector<ClaimFinding> of_figure_one;
  for (const Figured& form : figured_forms()) {
    const std::string variant = id_of(form, shaped) + ending_of(layers),
                      words = form.id.substr(3) + (shaped ? ", shaped" : "");
    const ClaimFinding found = trains(runs, variant, words, bar);
    const bool trained = found.words != ClaimFinding().words;
    sheet.losses.back().rows.push_back(
        {.words = words, .variant = variant, .reference = reference, .note = trained ? found.words : ""});
    if (form.figure_one) {
      of_figure_one.push_back(found);
    }
    const std::optional<Settled> best = runs.best(variant);
    if (best && best->runs.front()->seen.is_object() && !best->runs.front()->seen.empty()) {
      const nlohmann::ordered_json& seen = best->runs.front()->seen;
      sheet.rows.push_back(
          {{fmt::format("1a merged, {}, {} layers", shaped ? "shaped" : "plain", layers),
            seen.value("verdict", "") == "proved" ? Found::holds : Found::fails, removed_in_words(seen)},
           "exact",
           ClaimRole::further});
    }
  }
  const auto counted = [&](Found one) { return std::ranges::count(of_figure_one, one, &ClaimFinding::found); };
  ClaimFinding all = all_of(group, of_figure_one);
  const int64_t open = counted(Found::too_few);
  all.words = fmt::format("{} of 4 train, {} do not{}", counted(Found::holds), counted(Found::fails),
                          open > 0 ? fmt::format(", {} undecided", open) : "");
  sheet.rows.push_back({all, "4 of 4", ClaimRole::further});
  return all;
}

Outcome judge_skipless(const Trial& trial, const TrainedRuns& runs) {
  const int64_t shallow = shallow_of(trial.scale);
  ClaimSheet sheet;
  std::vector<ClaimFinding> groups;
  for (const int64_t layers : {shallow, 2 * shallow}) {
    sheet.losses.push_back({.title = fmt::format("Validation loss, {} layers", layers),
                            .rows = {{"baseline", "baseline" + ending_of(layers)}},
                            .notes_are = "trains",
                            .curves = fmt::format("Validation loss while training, {} layers", layers)});
    for (const bool shaped : {false, true}) {
      groups.push_back(add_forms(runs, layers, shaped, sheet));
    }
  }
  sheet.rows.push_back({any_of("all four forms of figure 1 train", groups), "", ClaimRole::headline});
  Outcome found = judged(trial.scale, runs, sheet);
  found.how =
      "The forms are the paper's figures. 1a: no skips and no norms; 1b, 1c, 1d: also without P and without Q, K or V. "
      "3a, 3b, 3c: the same in parallel blocks. 4a: skips and norms, without Q and P; 4b: 4a in parallel. A form "
      "trains if its loss falls by three quarters or more of what the baseline's does, from its first loss. A model "
      "that learns only how frequent each byte is gets half of that. A seed is that of the initial weights; the order "
      "of the data is the same for all runs";
  return found;
}

}  // namespace

std::vector<PaperClaim> claims_of_trained_skipless() {
  return {trained_claim(
      {.id = "skipless",
       .paper = Paper::skipless,
       .place = "Figures 1, 3 and 4",
       .says = "Models without skips and norms train, also without Q, K or V and without the output matrix P, and then "
               "merge exactly.",
       .recorded = ClaimVerdict::holds_corrected,
       .number = "shaped, 6 layers: 4 of 4 train; plain: 0 of 4",
       .cost_in_full = "a skipless Pythia-6.9B on 300 billion tokens, 1.2e22 operations, about a year of one H200",
       .paper_trained = false,
       .plan = plan_skipless,
       .judge = judge_skipless})};
}

}  // namespace pare
