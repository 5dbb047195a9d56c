// What the runs without norms come to, beside those that were trained on as they were.

#include "pare/claims/trained_norm_removal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "pare/support/text.h"

namespace pare {

namespace {

enum class NormCost { none, some, unknown };

// The same model, trained on as it is and with its norms gone.
struct NormSetting {
  std::string words, ending;            // of the variants' names
  std::string control_ending = ending;  // of the one that was trained on
};

std::vector<NormSetting> norm_settings(ClaimScale scale) {
  const NormRemovalSizes sizes = sizes_of_norm_removal(scale);
  std::vector<NormSetting> found = {
      {with_commas(sizes.usual) + " steps", ""},
      {with_commas(sizes.few) + " steps", "-few"},
      {with_commas(sizes.many) + " steps", "-many"},
      {fmt::format("after {} steps", with_commas(sizes.longer_baseline)), "-longer"},
      {"12 layers", "-layers-12"},
      {fmt::format("after {} steps of larger batches", sizes.early_baseline), "-early"},
      {"stories260K", stories_ending},
      {"stories260K, slowly, 6,400 steps", stories_longer_ending},
      {"stories260K, quickly, 6,400 steps", stories_recovered_ending, stories_longer_ending}};
  for (const int64_t width : sizes.widths) {
    found.push_back({fmt::format("width {}", width), fmt::format("-width-{}", width)});
  }
  return found;
}

struct NormPair {
  NormSetting setting;
  Settled control, without;
  NormCost cost = NormCost::unknown;
  double difference() const { return difference_of(without, control); }
};

// Each at its best rate among those that both were trained at.
std::optional<std::pair<Settled, Settled>> at_common_rates(const TrainedRuns& runs, const std::string& control,
                                                           const std::string& without) {
  std::optional<Settled> first, second;
  for (const Settled& a : runs.at_rates(control)) {
    for (const Settled& b : runs.at_rates(without)) {
      if (a.rate != b.rate) {
        continue;
      }
      first = first && first->loss <= a.loss ? first : a;
      second = second && second->loss <= b.loss ? second : b;
    }
  }
  return first ? std::optional(std::pair(*first, *second)) : std::nullopt;
}

// The largest deviation over seeds of any variant on the same text, for settings that have one seed.
std::optional<double> usual_spread(const std::vector<NormSetting>& settings, const TrainedRuns& runs) {
  std::optional<double> largest;
  for (const NormSetting& setting : settings) {
    for (const char* variant : {"control", "norms"}) {
      for (const Settled& settled : runs.at_rates(variant + setting.ending)) {
        if (settled.spread && !setting.ending.starts_with(stories_ending)) {
          largest = std::max({largest.value_or(0), *settled.spread, settled.spread_of_repeated});
        }
      }
    }
  }
  return largest;
}

// With seeds, what they differ by decides. With one seed the spread of other settings does: beyond three times it they
// are not equal. That they are, one seed cannot show.
NormCost cost_of(const Settled& control, const Settled& without, const std::optional<double>& usual) {
  const double more = difference_of(without, control);
  const std::optional<double> own = spread_of_difference(control, without);
  if (own && have_several_seeds(control, without)) {
    return more <= *own ? NormCost::none : NormCost::some;
  }
  if (!own && !usual) {
    return NormCost::unknown;
  }
  return more > 3 * (own ? *own : std::sqrt(2.0) * *usual) ? NormCost::some : NormCost::unknown;
}

// How many seeds lost by it: what the two have in common, start and batches, does not hide a small cost.
std::string seeds_in_words(const Settled& control, const Settled& without) {
  int64_t shared = 0, more = 0;
  for (const TrainedRun* run : without.runs) {
    for (const TrainedRun* other : control.runs) {
      shared += run->seed == other->seed;
      more += run->seed == other->seed && run->loss > other->loss;
    }
  }
  return shared > 1 ? fmt::format("more in {} of {} seeds", more, shared) : "one seed";
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

struct NormSettings {
  std::vector<NormPair> pairs;
  std::vector<std::string> lost;  // settings in which a seed was, in words: a cost that has no number
};

NormSettings compared_settings(ClaimScale scale, const TrainedRuns& runs) {
  const std::vector<NormSetting> settings = norm_settings(scale);
  const std::optional<double> usual = usual_spread(settings, runs);
  NormSettings found;
  for (const NormSetting& setting : settings) {
    const std::string control = "control" + setting.control_ending, without = "norms" + setting.ending;
    const int64_t lost = seeds_lost(runs, control, without);
    if (lost > 0) {
      found.lost.push_back(fmt::format("{} ({} of {} seeds stopped)", setting.words, lost, runs.ended(control).size()));
    }
    if (const auto both = at_common_rates(runs, control, without)) {
      found.pairs.push_back({setting, both->first, both->second,
                             lost > 0 ? NormCost::unknown : cost_of(both->first, both->second, usual)});
    }
  }
  return found;
}

std::string numbers_of(const NormPair& pair) {
  return fmt::format("{:.4f} against {:.4f}, {}", of_shared_seeds(pair.without, pair.control).loss,
                     of_shared_seeds(pair.control, pair.without).loss, seeds_in_words(pair.control, pair.without));
}

std::string difference_of(const NormPair& pair) {
  const std::optional<double> spread = spread_of_difference(pair.without, pair.control);
  return fmt::format("{:+.4f}{}", pair.difference(), spread ? fmt::format(" ± {:.4f}", *spread) : ", one seed");
}

std::vector<std::string> named(const std::vector<NormPair>& pairs, NormCost cost) {
  std::vector<std::string> words;
  for (const NormPair& pair : pairs) {
    if (pair.cost == cost) {
      words.push_back(fmt::format("{} ({})", pair.setting.words, numbers_of(pair)));
    }
  }
  return words;
}

void decide(const NormSettings& settings, Outcome& found) {
  const std::vector<NormPair>& pairs = settings.pairs;
  if (pairs.empty() || !pairs.front().setting.ending.empty()) {
    found.because = "the model was not trained both with and without its norms yet";
    return;
  }
  const NormPair& first = pairs.front();
  if (first.cost == NormCost::unknown) {
    found.because = fmt::format("{}: that decides nothing yet", numbers_of(first));
    return;
  }
  const std::vector<std::string> none = named(pairs, NormCost::none);
  std::vector<std::string> some = named(pairs, NormCost::some);
  some.insert(some.end(), settings.lost.begin(), settings.lost.end());
  if (some.empty()) {
    found.verdict = ClaimVerdict::holds;
    found.because = fmt::format("without norms the loss is the same or less: {}", fmt::join(none, ", "));
    return;
  }
  if (none.empty()) {
    found.verdict = ClaimVerdict::does_not_hold;
    found.because = fmt::format("without norms the loss is higher: {}", fmt::join(some, ", "));
    return;
  }
  found.verdict = ClaimVerdict::holds_corrected;
  found.because =
      fmt::format("norms go at no more than seeds or the same run again differ by in {}, and at a cost in {}",
                  fmt::join(none, ", "), fmt::join(some, ", "));
}

std::string in_words(const nlohmann::ordered_json& eliminated) {
  if (eliminated.contains("refused")) {
    return "refused";
  }
  const int64_t before = eliminated.at("before").get<int64_t>(), after = eliminated.at("after").get<int64_t>();
  return fmt::format("{} fewer, {:.2f} %: {}", with_commas(before - after),
                     100.0 * static_cast<double>(before - after) / static_cast<double>(before),
                     eliminated.at("verdict").get<std::string>());
}

ClaimTable table_of_settings(const std::vector<NormPair>& pairs) {
  ClaimTable table{.title = "What norms cost to remove, in nats a token; ±: what two single runs differ by",
                   .columns = {"trained on", "norms gone", "difference", "±", "seeds"},
                   .measured = "loss above that of the model trained on, nats a token",
                   .settings = {"trained on", "norms gone", "seeds"},
                   .rows_are = "setting",
                   .decimals = 4,
                   .spread_over = "seeds, or over the same run again where that is more, of a difference of two runs"};
  for (const NormPair& pair : pairs) {
    table.names.push_back(pair.setting.words);
    table.rows.push_back({pair.control.loss, pair.without.loss, pair.difference(),
                          spread_of_difference(pair.control, pair.without).value_or(std::nan("")),
                          static_cast<double>(std::min(pair.control.runs.size(), pair.without.runs.size()))});
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

Outcome judge_norm_removal(const Trial& trial, const TrainedRuns& runs) {
  Outcome found;
  const NormSettings settings = compared_settings(trial.scale, runs);
  const std::vector<NormPair>& pairs = settings.pairs;
  if (trial.scale == ClaimScale::smoke) {
    found.because = fmt::format("at this scale nothing can be said of what norms cost{}",
                                pairs.empty() ? "" : ": " + numbers_of(pairs.front()));
  } else {
    decide(settings, found);
  }
  for (const NormPair& pair : pairs) {
    found.compared.push_back({fmt::format("no norms, {}", pair.setting.words), "minimal", difference_of(pair)});
  }
  for (const TrainedRun& run : runs.all()) {
    if (run.seen.is_object()) {
      found.compared.push_back({run.variant + ": goes exactly", "yes", in_words(run.seen)});
    }
    if (!run.stopped.empty()) {
      found.compared.push_back({fmt::format("{}, seed {}", run.variant, run.seed), "trains", "stopped"});
    }
  }
  const std::vector<std::string> headline = {"control",         "norms",      "norms-evenness-0", "norms-evenness-1",
                                             "norms-teacher",   "no-query",   "no-key",           "no-value",
                                             "norms-and-skips", "smaller-mlp"};
  const std::vector<std::string> after = {"after-norms-control", "after-norms-skips", "after-norms-widened"};
  found.tables = {table_of_settings(pairs),
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
  return found;
}

}  // namespace pare
