#include "pare/report/compare_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pare/support/text.h"

namespace pare {

namespace {

std::string loss_text(double value) {
  return fmt::format("{:.4f}", value);
}

std::string size_words(const ComparedRuns& row, const ComparedRuns& first) {
  const int64_t more = row.parameters - first.parameters;
  return more == 0 ? "as many parameters"
                   : fmt::format("{} {} parameters", share_text(std::abs(more), first.parameters),
                                 more < 0 ? "fewer" : "more");
}

// Of every row but the first: how it stands to it. What is not told has no colour.
ReportVerdict verdict_of(const ComparedRuns& row, const ComparedRuns& first, const std::optional<double>& margin) {
  const Difference difference = difference_of(row.difference, margin);
  ReportVerdict verdict{.name = fmt::format("“{}” against “{}”", row.name, first.name),
                        .number = row.difference.count > 0
                                      ? fmt::format("{:+.4f} nats, {}", row.difference.mean, size_words(row, first))
                                      : size_words(row, first)};
  verdict.word = to_word(difference);
  verdict.words = in_words(row.difference, margin) + ".";
  verdict.tone = difference == Difference::too_few  ? Tone::neutral
                 : difference == Difference::higher ? Tone::bad
                                                    : Tone::good;
  return verdict;
}

std::string steps_text(int64_t step, int64_t steps) {
  return step == steps ? with_commas(steps) : fmt::format("{} of {}", with_commas(step), with_commas(steps));
}

ReportTable table_of_runs(const RunComparison& comparison) {
  ReportTable table{fmt::format("Validation after {} steps", with_commas(comparison.step)),
                    {"run", "parameters", "outside embeddings", "largest rate", "steps", "loss (nats)", "difference",
                     "spread", "seeds", "accuracy", "start", "verdict"},
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
                          other ? to_word(difference_of(row.difference, comparison.margin)) : "the first"});
  }
  return table;
}

ReportTable table_of_seeds(const RunComparison& comparison) {
  ReportTable table{"Validation of each seed", {"run", "folder", "seed", "steps done", "loss (nats)", "accuracy"}, {}};
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
                .y = {.words = "loss", .unit = "nats a target"}};
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

}  // namespace

Report compare_report(const RunComparison& comparison, const ReportOrigin& origin) {
  const ComparedRuns& first = comparison.rows.front();
  const bool several = comparison.rows.size() > 1;
  Report report{.title = "Training runs, side by side",
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
  fact("tokens of a sequence", "context");
  fact("sequences of a step", "sequences_per_step");
  fact("sequences to measure on", "validation_sequences");
  for (const ComparedRuns& row : comparison.rows) {
    if (&row != &first) {
      report.verdicts.push_back(verdict_of(row, first, comparison.margin));
    }
  }
  ReportSection drawn{
      .title = "Curves",
      .words = "Every line is the mean over the seeds of a variant, its band one standard deviation over them.",
      .figures = {curves(comparison, &ComparedRuns::validation, "Loss on the validation set, by step",
                         "The same sequences for all, each time."),
                  curves(comparison, &ComparedRuns::training, "Cross-entropy of training, by step",
                         fmt::format("{} What a teacher or a morph adds to the loss is not in it.",
                                     comparison.window == 1
                                         ? "Of every step, before the weights move."
                                         : fmt::format("Each point is the mean over {} steps.", comparison.window)))}};
  if (comparison.rows.size() > 1) {
    drawn.figures.push_back(curves(
        comparison, &ComparedRuns::differences, "Difference on the validation set, by step",
        fmt::format("To “{}”, of runs of one seed; below zero is better. The band is the 95 % interval.", first.name)));
    drawn.figures.back().y.words = "difference of the loss";
  }
  report.sections = {
      {.title = "Losses",
       .words = fmt::format(
           "Loss is the mean over the validation set, and over the seeds where there are several; the spread is the "
           "standard deviation over these. A difference is the mean over pairs of runs of one seed, with its 95 % "
           "interval by Student's t: over starts, since all saw the data in one order. Lower and higher: the interval "
           "excludes 0. {}",
           comparison.margin
               ? fmt::format("Equal: it lies within {:g} nats of 0, the margin that was named (--margin).",
                             *comparison.margin)
               : "Nothing is called equal without a margin (--margin)."),
       .tables = {table_of_runs(comparison)}},
      std::move(drawn),
      {.title = "Every run", .words = "", .tables = {table_of_seeds(comparison)}}};
  if (!comparison.notes.empty()) {
    ReportTable notes{"What else sets these runs apart", {"note"}, {}};
    for (const std::string& note : comparison.notes) {
      notes.rows.push_back({note + "."});
    }
    report.sections.front().tables.push_back(std::move(notes));
  }
  return report;
}

}  // namespace pare
