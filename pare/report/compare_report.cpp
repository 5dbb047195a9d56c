#include "pare/report/pages.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pare/support/error.h"
#include "pare/support/numbers.h"
#include "pare/train/compare.h"

namespace pare {

namespace {

std::string loss_text(double value) {
  return fmt::format("{:.4f}", value);
}

std::string size_words(const ComparedRuns& row, const ComparedRuns& first) {
  const int64_t more = row.parameters - first.parameters;
  return more == 0 ? "the same number of parameters"
                   : fmt::format("{} {} parameters", share_text(std::abs(more), first.parameters),
                                 more < 0 ? "fewer" : "more");
}

std::string verdict_word(Difference difference) {
  switch (difference) {
    case Difference::equal:
      return "equal loss";
    case Difference::lower:
      return "lower loss";
    case Difference::higher:
      return "higher loss";
    case Difference::too_few:
      return "too few runs";
  }
  PARE_UNREACHABLE("no such difference");
}

// Why that is the verdict: the interval, and what it leaves out.
std::string reason_of(const Estimate& difference, const std::optional<double>& margin) {
  if (!difference.interval) {
    return difference.count == 0 ? "No two runs share seed, data and order, so they cannot be compared."
           : difference.count == 1
               ? "From one pair of runs there is no interval: run more seeds."
               : fmt::format("All {} pairs of runs are exactly alike, so there is no interval.", difference.count);
  }
  const std::string interval =
      fmt::format("95 % interval: {:+.4f} to {:+.4f} nats, over {} pairs of runs with the same seed.",
                  difference.interval->least, difference.interval->most, difference.count);
  const std::string within =
      margin && is_within(difference, *margin) ? fmt::format(" It lies within the margin of {:g} nats.", *margin) : "";
  switch (difference_of(difference, margin)) {
    case Difference::equal:
      return interval + within;
    case Difference::lower:
    case Difference::higher:
      return interval + " It excludes 0." + within;
    case Difference::too_few:
      break;
  }
  const std::optional<int64_t> needed = pairs_needed(difference, margin);
  return fmt::format("{} It includes 0, so it decides nothing. {}", interval,
                     needed ? fmt::format("About {} pairs would be enough.", with_commas(*needed))
                            : "More than 10,000 pairs would be needed.");
}

// Of every row but the first: how it stands to it. What is not told has no colour.
ReportVerdict verdict_of(const ComparedRuns& row, const ComparedRuns& first, const std::optional<double>& margin) {
  const Difference difference = difference_of(row.difference, margin);
  ReportVerdict verdict{.name = fmt::format("“{}” against “{}”", row.name, first.name),
                        .number = row.difference.count > 0
                                      ? fmt::format("{:+.4f} nats, {}", row.difference.mean, size_words(row, first))
                                      : size_words(row, first)};
  // The interval excludes 0, and yet lies within the margin.
  const bool within = margin && is_within(row.difference, *margin) && difference != Difference::equal;
  verdict.word = verdict_word(difference) + (within ? ", within the margin" : "");
  verdict.words = reason_of(row.difference, margin);
  verdict.tone = difference == Difference::too_few  ? Tone::neutral
                 : difference == Difference::higher ? (within ? Tone::neutral : Tone::bad)
                                                    : Tone::good;
  return verdict;
}

std::string steps_text(int64_t step, int64_t steps) {
  return step == steps ? with_commas(steps) : fmt::format("{} of {}", with_commas(step), with_commas(steps));
}

ReportTable table_of_runs(const RunComparison& comparison) {
  ReportTable table{fmt::format("Validation after {} steps", with_commas(comparison.step)),
                    {"run", "parameters", "without embeddings", "peak learning rate", "steps", "loss (nats)",
                     "difference", "deviation over seeds", "seeds", "accuracy", "initial weights", "verdict"},
                    {}};
  const ComparedRuns& first = comparison.rows.front();
  for (const ComparedRuns& row : comparison.rows) {
    const bool other = &row != &first;
    const std::string difference =
        row.difference.count == 0
            ? ""
            : fmt::format("{} ({:+.2f}\u00a0%)", in_short(row.difference), 100 * row.difference.mean / first.loss);
    table.rows.push_back({row.name, with_commas(row.parameters), with_commas(row.outside_embeddings),
                          fmt::format("{:g}", row.rate), steps_text(comparison.step, row.steps), loss_text(row.loss),
                          other ? difference : "", row.spread ? "±\u00a0" + loss_text(*row.spread) : "unknown",
                          std::to_string(row.losses.size()), fmt::format("{:.2f}\u00a0%", 100 * row.accuracy),
                          row.teacher.empty() ? row.start : fmt::format("{}, taught by {}", row.start, row.teacher),
                          other ? verdict_word(difference_of(row.difference, comparison.margin)) : "reference"});
  }
  return table;
}

ReportTable table_of_seeds(const RunComparison& comparison) {
  ReportTable table{
      "Validation loss of each run", {"run", "folder", "seed", "steps done", "loss (nats)", "accuracy"}, {}};
  for (const ComparedRuns& row : comparison.rows) {
    for (size_t i = 0; i < row.paths.size(); ++i) {
      table.rows.push_back({row.name, row.paths[i], std::to_string(row.seeds[i]), steps_text(row.done[i], row.steps),
                            loss_text(row.losses[i]), fmt::format("{:.2f} %", 100 * row.accuracies[i])});
    }
  }
  return table;
}

Figure curves(const RunComparison& comparison, LossCurve ComparedRuns::*which, std::string title, std::string words) {
  Figure figure{.kind = FigureKind::lines,
                .title = std::move(title),
                .words = std::move(words),
                .x = {.words = "step"},
                .y = {.words = "loss", .unit = "nats per target", .least = 0}};
  for (const ComparedRuns& row : comparison.rows) {
    const LossCurve& curve = row.*which;
    figure.series.push_back(
        {.name = row.name, .x = {curve.steps.begin(), curve.steps.end()}, .y = curve.loss, .spread = curve.spread});
  }
  return figure;
}

// Hashes of what all runs saw, from the manifest that they share.
std::vector<Fact> data_hashes(const nlohmann::json& data) {
  std::vector<Fact> facts;
  const nlohmann::json flat = data.flatten();
  for (const auto& [key, value] : flat.items()) {
    if (value.is_string() && key.find("sha256") != std::string::npos) {
      facts.push_back({key.substr(1), value.get<std::string>()});
    }
  }
  return facts;
}

// Which runs: "Training runs: no-mlp, no-norm against base".
std::string title_of(const RunComparison& comparison) {
  constexpr size_t most_named = 4;
  const std::string& first = comparison.rows.front().name;
  if (comparison.rows.size() == 1) {
    return fmt::format("Training runs of “{}”", first);
  }
  std::string others;
  for (size_t i = 1; i < comparison.rows.size(); ++i) {
    others += fmt::format("{}“{}”", i > 1 ? ", " : "", comparison.rows[i].name);
  }
  return fmt::format(
      "Training runs: {} against “{}”",
      comparison.rows.size() - 1 <= most_named ? others : fmt::format("{} variants", comparison.rows.size() - 1),
      first);
}

}  // namespace

Report compare_report(const RunComparison& comparison, const ReportOrigin& origin) {
  const ComparedRuns& first = comparison.rows.front();
  const bool several = comparison.rows.size() > 1;
  Report report{.title = title_of(comparison),
                .summary = fmt::format("{} after {} steps, on the same data in the same order.",
                                       several ? fmt::format("{} variants", comparison.rows.size()) : "One variant",
                                       with_commas(comparison.step)),
                .measured = facts_of(origin),
                .fingerprint = data_hashes(comparison.data)};
  const auto fact = [&](const char* name, const char* key) {
    if (const auto found = comparison.data.find(key); found != comparison.data.end() && !found->is_null()) {
      report.measured.push_back({name, found->is_string() ? found->get<std::string>() : found->dump()});
    }
  };
  fact("task", "task");
  fact("tokens per sequence", "context");
  fact("sequences per step", "sequences_per_step");
  fact("validation sequences", "validation_sequences");
  for (const ComparedRuns& row : comparison.rows) {
    if (&row != &first) {
      report.verdicts.push_back(verdict_of(row, first, comparison.margin));
    }
  }
  ReportSection drawn{
      .title = "Curves",
      .words = "Each line is the mean over the seeds of a variant. Its band is one standard deviation over the seeds.",
      .figures = {curves(comparison, &ComparedRuns::validation, "Validation loss, by step",
                         "On the same sequences for all runs."),
                  curves(comparison, &ComparedRuns::training, "Training loss, by step",
                         fmt::format("Cross-entropy alone, without what a teacher or a morph adds. {}",
                                     comparison.window == 1
                                         ? "Each point is one step, before its update."
                                         : fmt::format("Each point is the mean over {} steps.", comparison.window)))}};
  if (comparison.rows.size() > 1) {
    drawn.figures.push_back(curves(
        comparison, &ComparedRuns::differences, "Difference of the validation loss, by step",
        fmt::format("Each variant minus “{}”, over pairs of runs with the same seed. Below zero is better. The band is "
                    "the 95 % interval.",
                    first.name)));
    drawn.figures.back().y = {.words = "difference of loss", .unit = "nats per target"};  // of either sign
  }
  report.sections = {
      {.title = "Losses",
       .words = fmt::format(
           "The loss is the mean over the validation set, and over the seeds. A difference is the mean over pairs of "
           "runs with the same seed, with its 95 % interval (Student's t). The seed sets the initial weights; all runs "
           "saw the data in the same order. Lower or higher means that the interval excludes 0. {}",
           comparison.margin
               ? fmt::format("Equal means that it lies within the margin, {:g} nats (--margin).", *comparison.margin)
               : "No loss is called equal without a margin (--margin)."),
       .tables = {table_of_runs(comparison)}},
      std::move(drawn),
      {.title = "Every run", .words = "", .tables = {table_of_seeds(comparison)}}};
  if (!comparison.notes.empty()) {
    ReportTable notes{"Other differences between these runs", {"note"}, {}};
    for (const std::string& note : comparison.notes) {
      notes.rows.push_back({note + "."});
    }
    report.sections.front().tables.push_back(std::move(notes));
  }
  return report;
}

}  // namespace pare
