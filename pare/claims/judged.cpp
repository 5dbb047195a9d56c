#include "pare/claims/judged.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace pare {

namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

// What a row compares: the second is nothing where it has no reference. Nothing where one was not trained.
struct SettledRow {
  std::optional<Settled> variant, reference;

  SettledRow(const TrainedRuns& runs, const LossRow& row) : variant(runs.best(row.variant)) {
    if (row.reference.empty()) {
      return;
    }
    const auto both = (row.common_rates ? at_common_rates : at_best_rates)(runs, row.variant, row.reference);
    if (both) {
      std::tie(variant, reference) = *both;
    }
  }
  Estimate difference() const { return reference ? loss_above(*variant, *reference) : Estimate(); }
};

// How many seeds ended with the reference, and at that rate or another not with the variant.
int64_t seeds_lost(const TrainedRuns& runs, const LossRow& row) {
  const auto has = [](const std::vector<const TrainedRun*>& all, int64_t seed, std::optional<double> rate) {
    return std::ranges::any_of(
        all, [&](const TrainedRun* run) { return run->seed == seed && (!rate || run->rate == *rate); });
  };
  std::set<int64_t> seeds;
  for (const TrainedRun* run : runs.stopped(row.variant)) {
    if (has(runs.ended(row.reference), run->seed, run->rate) && !has(runs.ended(row.variant), run->seed, {})) {
      seeds.insert(run->seed);
    }
  }
  return std::ssize(seeds);
}

ClaimFinding finding_of(const TrainedRuns& runs, const LossRow& row) {
  const SettledRow settled(runs, row);
  if (row.reference.empty()) {
    return settled.variant ? ClaimFinding{row.words, Found::too_few, fmt::format("{:.4f}", settled.variant->loss)}
                           : ClaimFinding{row.words};
  }
  if (const int64_t lost = row.stops_fail ? seeds_lost(runs, row) : 0; lost > 0) {
    const size_t seeds = runs.ended(row.reference).size();
    return {row.words, seeds > 1 ? Found::fails : Found::too_few, fmt::format("{} of {} seeds stopped", lost, seeds)};
  }
  return equal_within(row.words, settled.difference(), least_cost);
}

ClaimRow row_of(const TrainedRuns& runs, const LossRow& row) {
  ClaimRow found{finding_of(runs, row), row.claimed, row.role};
  if (const Estimate above = SettledRow(runs, row).difference(); above.count > 0) {
    // With another rate it could come lower, not higher.
    const bool fewer = !row.common_rates && runs.at_rates(row.variant).size() < runs.at_rates(row.reference).size();
    found.measured = in_short(above) + (fewer ? ", fewer rates" : "");
  }
  return found;
}

}  // namespace

std::vector<LossRow> beside_first(const std::vector<std::string>& variants) {
  std::vector<LossRow> rows;
  for (const std::string& variant : variants) {
    rows.push_back({variant, variant, rows.empty() ? "" : variants.front()});
  }
  return rows;
}

ClaimTable table_of(const TrainedRuns& runs, const LossTable& losses) {
  ClaimTable table{.title = losses.title,
                   .columns = {"loss", "diff", "±", "pairs", "parameters", "rate", "seeds"},
                   .measured = "loss above that of the reference, nats a token",
                   // bars of whole losses would all look alike
                   .settings = {"loss", "pairs", "parameters", "rate", "seeds"},
                   .rows_are = "variant",
                   .notes_are = losses.notes_are,
                   .decimals = 4,
                   .band = interval_of_pairs};
  for (const LossRow& row : losses.rows) {
    const SettledRow settled(runs, row);
    if (!settled.variant && row.note.empty()) {
      continue;
    }
    const Settled shown = settled.variant.value_or(Settled{.rate = nothing, .loss = nothing});
    const Estimate above = settled.difference();
    table.names.push_back(row.words);
    table.rows.push_back({shown.loss, above.count > 0 ? above.mean : nothing,
                          above.interval ? above.half_width() : nothing,
                          row.reference.empty() ? nothing : static_cast<double>(above.count),
                          settled.variant ? static_cast<double>(shown.parameters) : nothing, shown.rate,
                          static_cast<double>(shown.runs.size())});
    if (!losses.notes_are.empty()) {
      table.notes.push_back(row.note);
    }
  }
  return table;
}

Figure figure_by_parameters(const std::string& title, const FigureAxis& axis, const TrainedRuns& runs,
                            const std::vector<ParameterSeries>& series, double Settled::*number) {
  Figure figure{.kind = FigureKind::scatter,
                .title = title,
                .words =
                    "Each variant at its best learning rate, mean over its seeds. Parameters that can be removed "
                    "exactly after training do not count.",
                .x = {.words = "parameters"},
                .y = axis};
  for (const ParameterSeries& one : series) {
    Series points{.name = one.name};
    for (const auto& [variant, words] : one.variants) {
      const std::optional<Settled> best = runs.best(variant, number);
      if (!best) {
        continue;
      }
      double parameters = static_cast<double>(best->parameters);
      for (const TrainedRun* run : best->runs) {
        if (run->seen.is_object() && run->seen.contains("after")) {
          parameters = run->seen["after"].get<double>();
        }
      }
      points.x.push_back(parameters);
      points.y.push_back((number == &Settled::accuracy ? 100 : 1) * ((*best).*number));
      points.labels.push_back(words);
    }
    if (!points.x.empty()) {
      figure.series.push_back(std::move(points));
    }
  }
  return figure;
}

Outcome judged(ClaimScale scale, const std::vector<ClaimRow>& rows) {
  Outcome found;
  std::vector<ClaimFinding> headlines;
  ClaimFindings findings;
  for (const ClaimRow& row : rows) {
    const bool trained = row.finding.words != ClaimFinding().words;
    if (row.role == ClaimRole::headline) {
      headlines.push_back(row.finding);
    } else if (row.role == ClaimRole::further && trained) {
      findings.further.push_back(row.finding);
    }
    if (trained && !row.claimed.empty()) {
      found.compared.push_back(
          {row.finding.what, row.claimed, row.measured.empty() ? row.finding.words : row.measured});
    }
  }
  findings.headline = headlines.size() == 1 ? headlines.front() : all_of("decisive parts", headlines);
  if (found.compared.empty()) {
    found.compared.push_back({findings.headline.what, "claimed", findings.headline.words});
  }
  decide(scale, findings, found);
  return found;
}

Outcome judged(ClaimScale scale, const TrainedRuns& runs, const ClaimSheet& sheet) {
  std::vector<ClaimRow> rows;
  std::vector<ClaimTable> tables;
  std::vector<Figure> figures;
  for (const LossTable& losses : sheet.losses) {
    tables.push_back(table_of(runs, losses));
    std::vector<std::string> variants;
    for (const LossRow& row : losses.rows) {
      rows.push_back(row_of(runs, row));
      if (std::ranges::find(variants, row.variant) == variants.end()) {
        variants.push_back(row.variant);
      }
    }
    if (!losses.curves.empty()) {
      figures.push_back(curves_of_variants(losses.curves, runs, variants));
    }
    if (!losses.differences.empty()) {
      figures.push_back(differences_of_variants(losses.differences, runs, variants));
    }
  }
  rows.insert(rows.end(), sheet.rows.begin(), sheet.rows.end());
  Outcome found = judged(scale, rows);
  found.tables = std::move(tables);
  found.tables.insert(found.tables.end(), sheet.tables.begin(), sheet.tables.end());
  found.figures = std::move(figures);
  found.figures.insert(found.figures.end(), sheet.figures.begin(), sheet.figures.end());
  return found;
}

}  // namespace pare
