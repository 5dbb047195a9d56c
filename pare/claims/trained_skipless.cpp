// Paper 1, Figures 1, 3 and 4: which forms without skips, norms, and without Q and P (or K and P, V and P) train, how
// far behind a usual model they stay, and whether what was trained merges exactly.

#include "pare/claims/trained_claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/claims/comparators.h"
#include "pare/claims/exact_rewrite.h"
#include "pare/claims/plan.h"

namespace pare {

namespace {

// A figure of the paper as settings of a block.
struct Figured {
  std::string id, words;
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
      {"fig1a", "1a: no skips, norms", serial, true, true, true},
      {"fig1b", "1b: no skips, norms, Q, P", together(serial, no_query), true, false, true},
      {"fig1c", "1c: no skips, norms, K, P", together(serial, no_key), true, false, true},
      {"fig1d", "1d: no skips, norms, V, P", together(serial, no_value), true, false, true},
      {"fig3a", "3a: parallel, no Q, P", together(parallel, no_query)},
      {"fig3b", "3b: parallel, no K, P", together(parallel, no_key)},
      {"fig3c", "3c: parallel, no V, P", together(parallel, no_value)},
      {"fig4a", "4a: with norms and skips, no Q, P", no_query, false},
      {"fig4b", "4b: 4a, parallel", together(no_query, {{"wiring", "parallel"}, {"mlp.norm", nullptr}}), false},
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
  PlanForm found = form_of(id_of(form, shaped), form.words, changes);
  found.rates = form.norm_free ? std::vector<double>{1e-3, 5e-4, 2e-3} : std::vector<double>{2e-3};
  if (form.mergeable) {
    found.look = [](const std::filesystem::path& folder) { return rewritten_exactly(folder, "merge_skipless"); };
  }
  return found;
}

int64_t shallow_of(ClaimScale scale) {
  return scale == ClaimScale::smoke ? 2 : 6;
}

}  // namespace

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

namespace {

// Who comes three quarters of the way of the usual model of as many layers, from its first loss to its last, trains.
// One that has learnt nothing but how frequent each byte is has come half of it.
double bar_of(const Settled& usual) {  // no number where its first loss is not known
  const TrainedRun& run = *usual.runs.front();
  const auto start = run.validation.find(0);
  return start == run.validation.end() ? std::nan("") : start->second / 4 + 3 * usual.loss / 4;
}

struct Judged {
  std::optional<Settled> settled = {};  // nothing: no run came to an end that means anything
  ClaimFinding trains = {};
};

// It does where the losses of its seeds are below the bar for all of their interval; it does not where none of several
// runs was, at whatever rate: one rate more may still do where there was one.
Judged judged(const TrainedRuns& runs, const std::string& variant, const std::string& words,
              const std::optional<Settled>& usual) {
  const std::optional<Settled> settled = runs.best(variant);
  const std::vector<const TrainedRun*> stopped = runs.stopped(variant);
  Judged found{settled, {.what = words}};
  if (!settled && stopped.empty()) {
    return found;
  }
  if (!settled) {
    const TrainedRun& slowest = **std::min_element(
        stopped.begin(), stopped.end(), [](const TrainedRun* a, const TrainedRun* b) { return a->rate < b->rate; });
    const char* only = stopped.size() > 1 ? "" : " only";
    found.trains.found = stopped.size() > 1 ? Found::fails : Found::too_few;
    found.trains.words = diverged(slowest)
                             ? fmt::format("diverges to {:.2f}, lr {:g}{}", slowest.loss, slowest.rate, only)
                             : fmt::format("explodes at {}, lr {:g}{}", slowest.steps, slowest.rate, only);
    return found;
  }
  const double bar = usual ? bar_of(*usual) : std::nan("");
  if (std::isnan(bar)) {
    found.trains.words = fmt::format("{:.4f}", settled->loss);
    return found;
  }
  std::vector<double> losses;
  for (const TrainedRun* run : settled->runs) {
    losses.push_back(run->loss);
  }
  const auto below = [bar](const TrainedRun* run) { return run->loss < bar; };
  const std::vector<const TrainedRun*> ended = runs.ended(variant);
  const bool some = std::any_of(ended.begin(), ended.end(), below);
  found.trains.found =
      some ? threshold("", estimate_of(losses), {Bound::at_most, bar}, [](double) { return std::string(); }).found
      : ended.size() + stopped.size() > 1 ? Found::fails
                                          : Found::too_few;
  const double least = least_loss(*settled->runs.front());
  const int64_t lost =
      std::count_if(stopped.begin(), stopped.end(), [&](const TrainedRun* run) { return run->rate == settled->rate; });
  found.trains.words =
      fmt::format("{}, {}{}{}", settled->loss < bar ? "yes" : "no", in_short(loss_above(*settled, *usual)),
                  settled->loss >= bar && least < bar ? fmt::format(", {:.2f} before", least) : "",
                  lost > 0 ? fmt::format(", {} more stopped", lost) : "");
  return found;
}

std::string merge_in_words(const nlohmann::ordered_json& seen) {
  if (seen.contains("refused")) {
    return "refused";
  }
  const double before = seen.at("before").get<double>(), after = seen.at("after").get<double>();
  return fmt::format("{}, {:.0e}, {:+.1f} %", seen.at("verdict").get<std::string>(), seen.at("error").get<double>(),
                     100 * (after / before - 1));
}

}  // namespace

Outcome judge_skipless(const Trial& trial, const TrainedRuns& runs) {
  const int64_t shallow = shallow_of(trial.scale);
  Outcome found;
  ClaimTable behind{.title = "How far behind the usual model of as many layers",
                    .columns = {fmt::format("{} layers", shallow), fmt::format("{} layers", 2 * shallow)},
                    .measured = "nats behind",
                    .rows_are = "form"};
  std::vector<std::vector<std::string>> variants;  // that have a loss, the usual model first, by depth
  std::vector<ClaimFinding> groups, merges;
  for (const int64_t layers : {shallow, 2 * shallow}) {
    const std::string reference = "baseline" + ending_of(layers);
    const std::optional<Settled> usual = runs.best(reference);
    variants.push_back({reference});
    if (usual) {
      found.compared.push_back(
          {fmt::format("usual model, {} layers, nats a token", layers), "trains", fmt::format("{:.4f}", usual->loss)});
    }
    size_t place = 0;
    for (const bool shaped : {false, true}) {
      std::vector<ClaimFinding> of_figure_one;
      for (const Figured& form : figured_forms()) {
        const std::string variant = id_of(form, shaped) + ending_of(layers);
        const std::string words = form.words + (shaped ? ", shaped" : "");
        const Judged result = judged(runs, variant, words, usual);
        if (form.figure_one) {
          of_figure_one.push_back(result.trains);
        }
        if (place == behind.rows.size()) {
          behind.names.push_back(words);
          behind.rows.push_back({std::nan(""), std::nan("")});
        }
        if (result.settled) {
          variants.back().push_back(variant);
        }
        if (result.settled && usual) {
          behind.rows[place][layers == shallow ? 0 : 1] = loss_above(*result.settled, *usual).mean;
        }
        ++place;
        if (result.trains.words != ClaimFinding().words) {
          found.compared.push_back(
              {fmt::format("{}, {} layers", words, layers), form.norm_free ? "trains" : "open", result.trains.words});
        }
        const TrainedRun* run = result.settled ? result.settled->runs.front() : nullptr;
        if (run && run->seen.is_object() && !run->seen.empty()) {
          const std::string what = fmt::format("1a, Q and P merged{}, {} layers", shaped ? ", shaped" : "", layers);
          merges.push_back({what, run->seen.value("verdict", "") == "proved" ? Found::holds : Found::fails,
                            merge_in_words(run->seen)});
          found.compared.push_back({what, "exact", merges.back().words});
        }
      }
      ClaimFinding group =
          all_of(fmt::format("{} attention, {} layers", shaped ? "shaped" : "plain", layers), of_figure_one);
      const auto counted = [&](Found one) {
        return std::count_if(of_figure_one.begin(), of_figure_one.end(),
                             [one](const ClaimFinding& form) { return form.found == one; });
      };
      group.words = fmt::format("of {} forms {} train, {} do not", of_figure_one.size(), counted(Found::holds),
                                counted(Found::fails));
      groups.push_back(group);
    }
  }
  for (size_t row = behind.rows.size(); row-- > 0;) {
    if (std::isnan(behind.rows[row][0]) && std::isnan(behind.rows[row][1])) {
      behind.rows.erase(behind.rows.begin() + static_cast<int64_t>(row));
      behind.names.erase(behind.names.begin() + static_cast<int64_t>(row));
    }
  }
  found.compared.push_back({"it trains: share of the usual model's way", "not said", "3/4 or more"});
  found.tables.push_back(behind);
  for (size_t i = 0; i < variants.size(); ++i) {
    const std::string layers = fmt::format("{} layers", (i + 1) * static_cast<size_t>(shallow));
    found.tables.push_back(table_of_variants("Validation loss, " + layers, runs, variants[i]));
    found.figures.push_back(curves_of_variants("Validation loss while training, " + layers, runs, variants[i]));
  }
  std::erase_if(found.tables, [](const ClaimTable& table) { return table.rows.empty(); });
  ClaimFindings findings{any_of("all four forms of figure 1 train", groups), groups};
  findings.further.insert(findings.further.end(), merges.begin(), merges.end());
  decide(trial.scale, findings, found);
  return found;
}

PaperClaim claim_of_skipless() {
  return trained_claim(
      {.id = "skipless",
       .paper = Paper::skipless,
       .place = "Figures 1, 3 and 4",
       .says = "Models without skips and norms train, also without Q, K or V and without the output matrix P, and then "
               "merge exactly.",
       .recorded = ClaimVerdict::holds_corrected,
       .cost_in_full =
           "a skipless Pythia-6.9B on its 300 billion tokens would be 1.2e22 operations, about a year of one "
           "H200",
       .paper_trained = false},
      plan_skipless, judge_skipless);
}

}  // namespace pare
