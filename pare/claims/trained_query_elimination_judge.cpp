// What models with W_Q = I come to, beside their baselines and the controls, under every condition.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "pare/claims/trained_query_elimination.h"
#include "pare/support/text.h"

namespace pare {

using namespace query_form;

namespace {

std::string signed_number(double number) {
  return fmt::format("{:+.4f}", number);
}

// A variant at its best rate, of those that a reference was trained at too where one is named. Where one seed was
// trained there, and several at another rate, these stand for its spread.
std::optional<Settled> settled_at_best(const TrainedRuns& runs, const std::string& variant,
                                       const std::optional<std::string>& reference = {}) {
  std::optional<Settled> best;
  std::optional<double> spread;
  for (const Settled& one : runs.at_rates(variant)) {
    const bool counts = !reference || runs.at_rate(*reference, one.rate);
    best = counts && (!best || one.loss < best->loss) ? one : best;
    spread = spread ? spread : one.spread;
  }
  if (best && !best->spread) {
    best->spread = spread;
  }
  return best;
}

double millions_of_tokens(const nlohmann::json& config) {
  const double context = config.at("architecture").at("context").get<double>();
  return std::round(config.at("steps").get<double>() * config.at("batch").get<double>() * context / 1e6);
}

constexpr std::array compared_by_condition = {no_query, no_key, no_value, nonlinear};

// W_Q = I under one condition, and the other forms that were trained there too.
struct Gap {
  std::string id, words;
  double million_tokens = 0;
  Settled baseline, reduced;
  std::vector<std::optional<Settled>> forms;  // of compared_by_condition
  double difference() const { return difference_of(reduced, baseline); }
  // As far as seeds can say it: what it costs here is less than usual, with two deviations of their mean to spare.
  bool holds(double usual_difference) const {
    const std::optional<bool> equal = equal_within_spread(reduced, baseline);
    if (!equal || !*equal) {
      return equal && difference() < 0;
    }
    const double seeds = static_cast<double>(std::min(baseline.runs.size(), reduced.runs.size()));
    return difference() + 2 * *spread_of_difference(reduced, baseline) / std::sqrt(seeds) < usual_difference;
  }
};

std::optional<Gap> gap_of(const TrainedRuns& runs, const std::string& condition, const std::string& words,
                          const nlohmann::json& config) {
  // A rate more than the baseline had would be an advantage.
  const std::string reference = query_variant(baseline, condition);
  const std::optional<Settled> before = settled_at_best(runs, reference);
  const std::optional<Settled> after = settled_at_best(runs, query_variant(no_query, condition), reference);
  if (!before || !after) {
    return std::nullopt;
  }
  Gap gap{condition, words, millions_of_tokens(config), *before, *after, {}};
  for (const QueryForm& form : compared_by_condition) {
    gap.forms.push_back(settled_at_best(runs, query_variant(form, condition), reference));
  }
  return gap;
}

// "+0.0105 (one seed, one rate)": with other rates a form could come lower, not higher.
std::string cost_shown(const TrainedRuns& runs, const Settled& form, const Settled& reference) {
  std::string words = difference_shown(form, reference);
  if (runs.at_rates(form.variant).size() > 1) {
    return words;
  }
  const bool noted = words.ends_with(')');
  return words.substr(0, words.size() - noted) + (noted ? ", one rate)" : " (one rate)");
}

void compare_forms(const TrainedRuns& runs, const Settled& reference, Outcome& found) {
  found.compared.push_back({"baseline, nats a token", "2.944, BPE", fmt::format("{:.4f}", reference.loss)});
  const std::vector<std::pair<QueryForm, std::string>> rows = {
      {halved, "+0.000"},      {larger_halved, "-0.015"}, {smaller_mlp, "+0.011"}, {smaller_width, "+0.012"},
      {no_query, "not said"},  {larger, "not said"},      {no_key, "not said"},    {no_value, "not said"},
      {nonlinear, "not said"}, {doubled, "not said"}};
  std::vector<std::string> variants = {baseline.id};
  for (const auto& [form, claimed] : rows) {
    if (const std::optional<Settled> best = settled_at_best(runs, form.id)) {
      found.compared.push_back({form.words, claimed, cost_shown(runs, *best, reference)});
      variants.push_back(form.id);
    }
  }
  found.tables.push_back(table_of_variants(
      "Validation loss, each at its best rate; differences are of seeds that both have", runs, variants));
  found.figures.push_back(curves_of_variants("Validation loss while training", runs, variants));
  found.figures.push_back(differences_of_variants("The same, above the baseline", runs, variants));
}

// What W_Q = I costs as it depends on one number.
using Dependence = std::map<double, Gap>;

// Whether it changes by more than seeds do; on either side stand two single runs.
void compare_ends(const std::string& number, const Dependence& gaps, const std::optional<double>& spread,
                  Outcome& found) {
  if (gaps.size() < 2) {
    return;
  }
  ClaimTable table{fmt::format("What W_Q = I costs, by {}", number),
                   {number, "difference", "baseline"},
                   {},
                   "W_Q = I less the baseline, nats",
                   {"baseline"}};
  table.decimals = 4;
  for (const auto& [at, gap] : gaps) {
    table.rows.push_back({at, gap.difference(), gap.baseline.loss});
  }
  const auto& [first, least] = *gaps.begin();
  const auto& [last, most] = *gaps.rbegin();
  const double change = most.difference() - least.difference();
  const bool several =
      have_several_seeds(least.baseline, least.reduced) && have_several_seeds(most.baseline, most.reduced);
  const auto noise = [&](const Gap& gap) {  // its own, and no less than the usual size has
    return std::max(spread_of_difference(gap.reduced, gap.baseline).value_or(0), std::sqrt(2.0) * spread.value_or(0));
  };
  const bool seen = std::abs(change) > 2 * std::hypot(noise(least), noise(most));
  found.tables.push_back(table);
  found.compared.push_back(
      {fmt::format("W_Q = I, {} {:g} and {:g}", number, first, last), "not said",
       fmt::format("{} and {}{}", signed_number(least.difference()), signed_number(most.difference()),
                   !several     ? " (one seed)"
                   : !spread    ? ""
                   : !seen      ? " (not told apart)"
                   : change < 0 ? ": shrinks"
                                : ": grows")});
}

// Of what was trained longest: the share of tokens that the baseline could do without and be where W_Q = I is, between
// its two longest runs in the logarithm of their tokens.
std::optional<double> tokens_worth(const Dependence& by_tokens) {
  if (by_tokens.size() < 2) {
    return std::nullopt;
  }
  const auto& [most, longest] = *by_tokens.rbegin();
  const auto& [less, before] = *std::next(by_tokens.rbegin());
  const double at = (before.baseline.loss - longest.reduced.loss) / (before.baseline.loss - longest.baseline.loss);
  return at > 0 && at <= 1 ? std::optional(1 - std::pow(less / most, 1 - at)) : std::nullopt;
}

// A pair has the same condition, seed and rate, whichever: what single runs differ by is seen in how often one of them
// loses.
std::string compare_pairs(const TrainedRuns& runs, const std::vector<Gap>& gaps, Outcome& found) {
  std::string of_query;
  Figure figure{.kind = FigureKind::scatter,
                .title = "What a form costs: every pair of runs, by tokens",
                .words = "A point for each pair of one condition, seed and rate.",
                .x = {.words = "million tokens", .log = true},
                .y = {.words = "loss above the baseline", .unit = "nats a token"}};
  for (const QueryForm& form : {no_query, no_key, no_value}) {
    std::vector<double> differences;
    Series series{.name = form.words};
    for (const Gap& gap : gaps) {
      for (const TrainedRun& after : runs.all()) {
        if (after.variant != query_variant(form, gap.id) || !after.stopped.empty()) {
          continue;
        }
        for (const TrainedRun& before : runs.all()) {
          if (before.variant == query_variant(baseline, gap.id) && before.rate == after.rate &&
              before.seed == after.seed && before.stopped.empty()) {
            differences.push_back(after.loss - before.loss);
            series.x.push_back(gap.million_tokens);
            series.y.push_back(after.loss - before.loss);
          }
        }
      }
    }
    if (!differences.empty()) {
      figure.series.push_back(series);
    }
    if (differences.size() < 3) {
      continue;
    }
    const int64_t lost = std::count_if(differences.begin(), differences.end(), [](double d) { return d > 0; });
    std::sort(differences.begin(), differences.end());
    const size_t count = differences.size();
    const double median = (differences[(count - 1) / 2] + differences[count / 2]) / 2;
    const std::string words = fmt::format("{} of {}, median {}", lost, count, signed_number(median));
    found.compared.push_back({fmt::format("{}, pairs of runs that lose", form.words), "not said", words});
    of_query = of_query.empty() ? words : of_query;
  }
  if (!figure.series.empty()) {
    found.figures.push_back(figure);
  }
  return of_query;
}

// Of the forms that were trained at more than one rate.
void compare_rates(const TrainedRuns& runs, Outcome& found) {
  std::vector<QueryForm> forms;
  std::set<double> rates;
  for (const QueryForm& form :
       {baseline, no_query, halved, larger, larger_halved, no_key, no_value, smaller_mlp, smaller_width, nonlinear}) {
    const std::vector<Settled> all = runs.at_rates(form.id);
    if (all.size() > 1) {
      forms.push_back(form);
      std::for_each(all.begin(), all.end(), [&rates](const Settled& settled) { rates.insert(settled.rate); });
    }
  }
  ClaimTable table{
      .title = "Validation loss by learning rate", .measured = "nats a token", .rows_are = "form", .decimals = 4};
  for (const double rate : rates) {
    table.columns.push_back(fmt::format("{:g}", rate));
  }
  for (const QueryForm& form : forms) {
    std::vector<double> row;
    for (const double rate : rates) {
      const std::optional<Settled> settled = runs.at_rate(form.id, rate);
      row.push_back(settled ? settled->loss : std::nan(""));
    }
    table.names.push_back(form.words);
    table.rows.push_back(row);
  }
  if (table.rows.size() > 1) {
    found.tables.push_back(table);
  }
}

struct ByCondition {
  std::vector<Gap> gaps;
  std::string pairs;  // of W_Q = I, in words
};

// Every condition that was trained, the usual one first.
ByCondition compare_conditions(const Trial& trial, const TrainedRuns& runs, const std::optional<double>& spread,
                               Outcome& found) {
  std::vector<Gap> gaps;
  Dependence by_width, by_tokens;
  const std::optional<Gap> usual = gap_of(runs, "", "as usual, best rates", query_run(trial));
  if (usual) {
    gaps.push_back(*usual);
  }
  if (trial.scale == ClaimScale::full) {
    return {gaps, ""};
  }
  if (usual) {  // at the rate of its baseline, as most others are
    Gap at_one_rate = *usual;
    at_one_rate.reduced = runs.at_rate(no_query.id, usual->baseline.rate).value_or(usual->reduced);
    by_tokens.emplace(usual->million_tokens, at_one_rate);
  }
  for (const QueryCondition& condition : query_conditions(trial)) {
    const std::optional<Gap> gap = gap_of(runs, condition.id, condition.words, condition.config);
    if (!gap) {
      continue;
    }
    gaps.push_back(*gap);
    if (condition.of_width) {
      by_width.emplace(condition.config.at("architecture").at("width").get<double>(), *gap);
    }
    if (condition.of_tokens) {
      by_tokens.emplace(gap->million_tokens, *gap);
    }
  }
  ClaimTable table{"What a form costs, by condition; seeds of W_Q = I",
                   {},
                   {},
                   "less the baseline, nats",
                   {"baseline", "seeds"},
                   "condition",
                   {}};
  table.decimals = 4;
  for (const QueryForm& form : compared_by_condition) {
    table.columns.push_back(form.words);
  }
  table.columns.insert(table.columns.end(), {"baseline", "seeds"});
  for (const Gap& gap : gaps) {
    table.names.push_back(gap.words);
    std::vector<double> row;
    for (const std::optional<Settled>& form : gap.forms) {
      row.push_back(form ? difference_of(*form, gap.baseline) : std::nan(""));
    }
    const size_t seeds = std::min(gap.baseline.runs.size(), gap.reduced.runs.size());
    row.insert(row.end(), {gap.baseline.loss, static_cast<double>(seeds)});
    table.rows.push_back(row);
  }
  if (gaps.size() > 1) {
    found.tables.push_back(table);
  }
  const std::string pairs = compare_pairs(runs, gaps, found);
  compare_ends("width", by_width, spread, found);
  compare_ends("million tokens", by_tokens, spread, found);
  if (const std::optional<double> share = tokens_worth(by_tokens)) {
    found.compared.push_back({"W_Q = I, as with fewer tokens", "0 %", fmt::format("{:.0f} %", 100 * *share)});
  }
  return {gaps, pairs};
}

}  // namespace

Outcome judge_query_elimination(const Trial& trial, const TrainedRuns& runs) {
  Outcome found;
  const std::optional<Settled> reference = settled_at_best(runs, baseline.id);
  const std::optional<Settled> with_half = settled_at_best(runs, halved.id), plain = settled_at_best(runs, no_query.id);
  if (!reference || (!with_half && !plain)) {
    found.compared = {{"W_Q = I", "+0.000", "not trained yet"}};
    found.because = "the baseline and W_Q = I have not both been trained";
    return found;
  }
  compare_forms(runs, *reference, found);
  const bool half_is_best = !plain || (with_half && with_half->loss < plain->loss);
  const Settled& best = half_is_best ? *with_half : *plain;
  found.compared.push_back(
      {"best rate over the baseline's", "2.7", fmt::format("{:.3g}", best.rate / reference->rate)});
  const std::optional<double> spread = reference->spread ? reference->spread : best.spread;
  compare_rates(runs, found);
  const auto [gaps, pairs] = compare_conditions(trial, runs, spread, found);

  std::string numbers = fmt::format("W_Q = I ends at {:.4f}, the baseline at {:.4f}",
                                    of_shared_seeds(best, *reference).loss, of_shared_seeds(*reference, best).loss);
  if (const std::optional<Settled> control = settled_at_best(runs, smaller_mlp.id)) {
    numbers += fmt::format(
        " ({}{}; an MLP smaller by as many parameters: {})", signed_number(difference_of(best, *reference)),
        have_several_seeds(best, *reference) ? "" : ", one seed", signed_number(difference_of(*control, *reference)));
  }
  const std::optional<bool> equal = equal_within_spread(best, *reference);
  if (trial.scale == ClaimScale::smoke || !equal) {
    found.because = numbers + (equal ? ": nothing follows from numbers sorted by a small model"
                                     : ": one seed each decides nothing");
    return found;
  }
  if (*equal || best.loss < reference->loss) {
    const bool as_claimed = half_is_best || (with_half && equal_within_spread(*with_half, *reference).value_or(false));
    found.verdict = as_claimed ? ClaimVerdict::holds : ClaimVerdict::holds_corrected;
    found.because =
        numbers + (as_claimed ? ", no more than seeds differ" : ", but with the usual scale, not half of it");
    return found;
  }
  const auto holding = std::find_if(gaps.begin(), gaps.end(),
                                    [&](const Gap& gap) { return gap.holds(difference_of(best, *reference)); });
  if (holding != gaps.end()) {
    found.verdict = ClaimVerdict::holds_corrected;
    found.because = fmt::format("only with {}, where the difference is {}; else {}", holding->words,
                                signed_number(holding->difference()), numbers);
    return found;
  }
  found.verdict = ClaimVerdict::does_not_hold;
  found.because = numbers + ": at this scale more than seeds differ by";
  if (gaps.size() > 1 && !pairs.empty()) {
    found.because += fmt::format("; of pairs of runs under {} conditions it lost in {}", gaps.size(), pairs);
  }
  return found;
}

}  // namespace pare
