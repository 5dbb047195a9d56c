// Paper 1, Figures 1, 3 and 4: which forms without skips, norms, and without Q and P (or K and P, V and P) train, how
// far behind a usual model they stay, and whether what was trained merges exactly.

#include "pare/claims/trained_removals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "pare/claims/exact_rewrite.h"

namespace pare {

namespace {

using BlockChanges = std::vector<std::pair<std::string, nlohmann::json>>;

// A figure of the paper as settings of a block.
struct Figured {
  std::string id, words;
  BlockChanges block;       // without architecture.blocks.*. before them
  bool norm_free = true;    // nor a final norm; another start
  bool mergeable = false;   // its Q and P can be merged exactly
  bool figure_one = false;  // of which the claim speaks
};

BlockChanges together(BlockChanges changes, const BlockChanges& more) {
  changes.insert(changes.end(), more.begin(), more.end());
  return changes;
}

std::vector<Figured> figured_forms() {
  const BlockChanges bare = {{"attention.norm", nullptr}, {"mlp.norm", nullptr}, {"attention.skip", false}};
  const BlockChanges serial = together(bare, {{"mlp.skip", false}}),
                     parallel = together(bare, {{"wiring", "parallel"}});
  const auto without = [](const std::string& slot) {
    // What becomes the identity has no bias either.
    nlohmann::json bias = {{"query", true}, {"key", true}, {"value", true}};
    bias.erase(slot);
    return BlockChanges{{"attention." + slot, "identity"}, {"attention.output", "identity"}, {"attention.bias", bias}};
  };
  const BlockChanges no_query = without("query"), no_key = without("key"), no_value = without("value");
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

const std::string usual_model = "baseline";

std::string variant_of(const std::string& form, bool shaped, int64_t layers) {
  return fmt::format("{}{}-{}layers", form, shaped ? "-shaped" : "", layers);
}

nlohmann::json form_config(const nlohmann::json& base, const Figured& form, bool shaped, int64_t layers) {
  std::vector<std::pair<std::string, nlohmann::json>> changes;
  for (const auto& [key, value] : form.block) {
    changes.emplace_back("architecture.blocks.*." + key, value);
  }
  changes.emplace_back("architecture.blocks.*.repeat", layers);
  if (shaped) {
    changes.emplace_back("architecture.blocks.*.attention.shaped", true);
  }
  if (form.norm_free) {
    changes.emplace_back("architecture.final_norm", nullptr);
    changes.emplace_back("init.recipe", "orthogonal");
  }
  return changed(base, changes);
}

}  // namespace

std::vector<PlannedRun> plan_skipless(const Trial& trial) {
  const bool smoke = trial.scale == ClaimScale::smoke;
  // Without norms a stream of deviation one would meet a tied table in logits far too large: the head is of its own.
  const nlohmann::json usual = changed(short_run(trial), {{"architecture.head.tied", false}});
  const nlohmann::json base = smoke ? changed(usual, {{"steps", 6}, {"evaluate.every", 3}}) : usual;
  const std::vector<Figured> forms = figured_forms();
  const int64_t shallow = smoke ? 2 : 6, deep = 2 * shallow;
  std::vector<PlannedRun> plan;
  const auto add_usual = [&](int64_t layers, double rate, int64_t seed) {
    plan.push_back({variant_of(usual_model, false, layers),
                    changed(base, {{"architecture.blocks.*.repeat", layers}, {"optimiser.lr", rate}, {"seed", seed}})});
  };
  const auto add = [&](const Figured& form, bool shaped, int64_t layers, double rate, int64_t seed) {
    PlannedRun run{variant_of(form.id, shaped, layers),
                   changed(form_config(base, form, shaped, layers), {{"optimiser.lr", rate}, {"seed", seed}})};
    if (form.mergeable && seed == 0) {
      run.look = [](const std::filesystem::path& folder) { return rewritten_exactly(folder, "merge_skipless"); };
    }
    plan.push_back(run);
  };
  const auto add_all = [&](int64_t layers, double rate, int64_t seed, bool parallel) {
    for (const bool shaped : {false, true}) {
      for (const Figured& form : forms) {
        if (form.norm_free && form.figure_one != parallel) {
          add(form, shaped, layers, rate, seed);
        }
      }
    }
  };
  constexpr double rate = 1e-3;
  add_usual(shallow, 2e-3, 0);
  add_all(shallow, rate, 0, false);
  for (const Figured& form : forms) {
    if (!form.norm_free) {
      add(form, false, shallow, 2e-3, 0);
    }
  }
  add_usual(deep, 2e-3, 0);
  add_all(deep, rate, 0, false);
  if (!smoke) {
    add_all(deep, 5e-4, 0, false);
  }
  add_all(shallow, rate, 0, true);
  if (smoke) {
    return plan;
  }
  add_all(shallow, 5e-4, 0, false);
  for (const Figured& form : forms) {
    if (!form.norm_free) {
      add(form, false, deep, 2e-3, 0);
      add(form, true, shallow, 2e-3, 0);
      add(form, true, deep, 2e-3, 0);
    }
  }
  add_all(deep, 5e-4, 0, true);
  add_all(shallow, 5e-4, 0, true);
  add_all(deep, rate, 0, true);
  add_usual(shallow, rate, 0);
  add_usual(deep, rate, 0);
  add_all(shallow, 2e-3, 0, false);
  for (const int64_t seed : {1, 2}) {
    add_usual(shallow, 2e-3, seed);
    add_all(shallow, rate, seed, false);
  }
  return plan;
}

namespace {

// Who comes three quarters of the way of the usual model of as many layers, from its first loss to its last, trains.
// One that has learnt nothing but how frequent each byte is has come half of it.
double bar_of(const Settled& usual) {  // no number where its first loss is not known
  const TrainedRun& run = *usual.runs.front();
  const auto start = run.validation.find(0);
  return start == run.validation.end() ? std::nan("") : start->second / 4 + 3 * usual.loss / 4;
}

enum class Trains { yes, no, unknown };

struct Judged {
  Trains trains = Trains::unknown;
  std::optional<Settled> settled = {};  // nothing: no run came to an end that means anything
  std::string words = {};               // empty: nobody has trained it
};

Judged judged(const TrainedRuns& runs, const std::string& variant, const std::optional<Settled>& usual) {
  const std::optional<Settled> settled = runs.best(variant);
  const std::vector<const TrainedRun*> stopped = runs.stopped(variant);
  const double bar = usual ? bar_of(*usual) : std::nan("");
  if (!settled && stopped.empty()) {
    return {};
  }
  // At one rate only: another may still do.
  std::set<double> rates;
  for (const TrainedRun& run : runs.all()) {
    if (run.variant == variant) {
      rates.insert(run.rate);
    }
  }
  const Trains not_at_any = rates.size() > 1 ? Trains::no : Trains::unknown;
  const char* only = rates.size() > 1 ? "" : " only";
  if (!settled) {
    const TrainedRun& slowest = **std::min_element(
        stopped.begin(), stopped.end(), [](const TrainedRun* a, const TrainedRun* b) { return a->rate < b->rate; });
    return {not_at_any,
            {},
            diverged(slowest) ? fmt::format("diverges to {:.2f}, lr {:g}{}", slowest.loss, slowest.rate, only)
                              : fmt::format("explodes at {}, lr {:g}{}", slowest.steps, slowest.rate, only)};
  }
  if (std::isnan(bar)) {
    return {Trains::unknown, settled, fmt::format("{:.4f}", settled->loss)};
  }
  const bool trains = settled->loss < bar;
  const Trains found = trains ? Trains::yes : not_at_any;
  const double least = least_loss(*settled->runs.front());
  return {found, settled,
          fmt::format("{}, {:+.4f}{}", trains ? "yes" : "no", difference_of(*settled, *usual),
                      !trains && least < bar ? fmt::format(" ({:.2f} before)", least) : "")};
}

// All or none of them, where all are known.
Trains of_all(const std::vector<Judged>& forms) {
  const auto is = [&](Trains trains) {
    return std::any_of(forms.begin(), forms.end(), [&](const Judged& form) { return form.trains == trains; });
  };
  return is(Trains::no) ? Trains::no : is(Trains::unknown) ? Trains::unknown : Trains::yes;
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
  const int64_t shallow = trial.scale == ClaimScale::smoke ? 2 : 6;
  Outcome found;
  ClaimTable behind{"How far behind the usual model of as many layers",
                    {fmt::format("{} layers", shallow), fmt::format("{} layers", 2 * shallow)},
                    {},
                    "nats behind",
                    {},
                    "form",
                    {}};
  std::map<int64_t, std::vector<std::string>> by_layers;  // what has a loss, the usual model first
  std::map<std::string, double> differences;              // to that model, by variant
  struct Group {
    bool shaped;
    int64_t layers;
    std::vector<Judged> forms;
  };
  std::vector<Group> groups;
  bool merges = true;  // what was tried of it
  for (const int64_t layers : {shallow, 2 * shallow}) {
    const std::string reference = variant_of(usual_model, false, layers);
    const std::optional<Settled> usual = runs.best(reference);
    if (usual) {
      by_layers[layers].push_back(reference);
      found.compared.push_back(
          {fmt::format("usual model, {} layers, nats a token", layers), "trains", fmt::format("{:.4f}", usual->loss)});
    }
    for (const bool shaped : {false, true}) {
      Group group{shaped, layers, {}};
      for (const Figured& form : figured_forms()) {
        const std::string variant = variant_of(form.id, shaped, layers);
        const Judged result = judged(runs, variant, usual);
        if (form.figure_one) {
          group.forms.push_back(result);
        }
        if (result.settled) {
          by_layers[layers].push_back(variant);
        }
        if (result.settled && usual) {
          differences[variant] = difference_of(*result.settled, *usual);
        }
        if (!result.words.empty()) {
          found.compared.push_back({fmt::format("{}{}, {} layers", form.words, shaped ? ", shaped" : "", layers),
                                    form.norm_free ? "trains" : "open", result.words});
        }
        const TrainedRun* run = result.settled ? result.settled->runs.front() : nullptr;
        if (run && run->seen.is_object() && !run->seen.empty()) {
          merges = merges && run->seen.value("verdict", "") == "proved";
          found.compared.push_back({fmt::format("1a, Q and P merged{}, {} layers", shaped ? ", shaped" : "", layers),
                                    "exact", merge_in_words(run->seen)});
        }
      }
      groups.push_back(group);
    }
  }
  for (const bool shaped : {false, true}) {
    for (const Figured& form : figured_forms()) {
      std::vector<double> row;
      for (const int64_t layers : {shallow, 2 * shallow}) {
        const auto difference = differences.find(variant_of(form.id, shaped, layers));
        row.push_back(difference != differences.end() ? difference->second : std::numeric_limits<double>::quiet_NaN());
      }
      if (std::any_of(row.begin(), row.end(), [](double number) { return std::isfinite(number); })) {
        behind.rows.push_back(row);
        behind.names.push_back(form.words + (shaped ? ", shaped" : ""));
      }
    }
  }
  found.compared.push_back({"it trains: share of the usual model's way", "not said", "3/4 or more"});
  if (runs.all().empty()) {
    found.compared = {{"forms of figure 1", "train", "not trained yet"}};
    found.because = "nothing has been trained";
    return found;
  }
  if (!behind.rows.empty()) {
    found.tables.push_back(behind);
  }
  for (const auto& [layers, variants] : by_layers) {
    found.tables.push_back(table_of_variants(fmt::format("Validation loss, {} layers", layers), runs, variants));
    found.figures.push_back(
        curves_of_variants(fmt::format("Validation loss while training, {} layers", layers), runs, variants));
  }

  std::vector<std::string> all_train, not_all, open;
  for (const Group& group : groups) {
    const std::string words = fmt::format("{} attention, {} layers", group.shaped ? "shaped" : "plain", group.layers);
    const Trains trains = of_all(group.forms);
    if (trains == Trains::no) {
      const int64_t some = std::count_if(group.forms.begin(), group.forms.end(),
                                         [](const Judged& form) { return form.trains == Trains::yes; });
      not_all.push_back(fmt::format("{} ({} of {})", words, some, group.forms.size()));
      continue;
    }
    (trains == Trains::yes ? all_train : open).push_back(words);
  }
  const auto listed = [](const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, "; ")); };
  if (trial.scale == ClaimScale::smoke) {
    found.because = "nothing follows from numbers sorted by a small model";
    return found;
  }
  if (not_all.empty() && !open.empty()) {
    found.because = "not all of it has been trained: " + listed(open);
    return found;
  }
  if (not_all.empty()) {
    found.verdict = merges ? ClaimVerdict::holds : ClaimVerdict::holds_corrected;
    found.because = fmt::format("all four forms of figure 1 train, with plain and with shaped attention{}",
                                merges ? "" : ", but not all that was trained merges exactly");
    return found;
  }
  if (!all_train.empty()) {
    found.verdict = ClaimVerdict::holds_corrected;
    found.because =
        fmt::format("all four forms of figure 1 train with {}, though worse; at two rates not all with {}{}",
                    listed(all_train), listed(not_all), open.empty() ? "" : "; open with " + listed(open));
    return found;
  }
  if (open.empty()) {
    found.verdict = ClaimVerdict::does_not_hold;
    found.because = "with neither attention and at neither depth do all four forms of figure 1 train";
    return found;
  }
  found.because =
      fmt::format("not all of it has been trained: {}; not all forms train with {}", listed(open), listed(not_all));
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
