#include "pare/claims/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>

#include "pare/claims/draws.h"
#include "pare/claims/stated.h"
#include "pare/report/svg.h"
#include "pare/support/mapped.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

constexpr const char* spread_column = "±";

std::string command_of(const Measured& measured) {
  std::string command = "pare reproduce " + measured.claim->id;
  command += measured.trial.scale == ClaimScale::smoke ? "" : " --scale " + to_words(measured.trial.scale);
  for (const std::filesystem::path& model : measured.trial.models) {
    command += " --model " + model.filename().string();
  }
  command += measured.trial.text.empty() ? "" : " --text " + measured.trial.text.filename().string();
  command += measured.trial.scale == ClaimScale::smoke ? "" : training_flags(*measured.claim);
  return command + (measured.trial.seed == 0 ? "" : fmt::format(" --seed {}", measured.trial.seed));
}

std::string cost_of(const Measured& measured) {
  if (!measured.outcome.cost.empty()) {
    return measured.outcome.cost;
  }
  return (measured.seconds < 1 ? "under a second" : human_time(std::ceil(measured.seconds))) + " of processor time";
}

size_t drawn_figures(const Measured& measured) {
  return measured.claim->trains() ? measured.outcome.figures.size() : 0;
}

std::string picture_name(size_t number) {
  return fmt::format("figure-{}.svg", number + 1);
}

// A table in words: the first row is its head, the first and the last column may be words, or all.
struct Grid {
  std::vector<std::vector<std::string>> rows;
  bool named = true, noted = false, worded = false;

  Align align(size_t column) const {
    return worded || (named && column == 0) || (noted && column + 1 == rows.front().size()) ? Align::left
                                                                                            : Align::right;
  }
};

Grid grid_of(const std::vector<Compared>& compared) {
  Grid grid{{{"", "claimed", "measured"}}};
  for (const Compared& row : compared) {
    grid.rows.push_back({row.what, row.claimed, row.measured});
  }
  return grid;
}

Grid grid_of(const ClaimTable& table) {
  Grid grid{{table.columns}, !table.names.empty(), !table.notes.empty()};
  for (const std::vector<double>& row : table.rows) {
    std::vector<std::string> cells;
    std::ranges::transform(row, std::back_inserter(cells),
                           [&](double number) { return shown(number, table.decimals); });
    grid.rows.push_back(std::move(cells));
  }
  for (size_t i = 0; i < grid.rows.size(); ++i) {
    std::vector<std::string>& row = grid.rows[i];
    if (grid.named) {
      row.insert(row.begin(), i == 0 ? table.rows_are : table.names[i - 1]);
    }
    if (grid.noted) {
      row.push_back(i == 0 ? table.notes_are : table.notes[i - 1]);
    }
  }
  return grid;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string row = "|";
  for (const std::string& cell : cells) {
    row += " ";
    for (const char c : cell) {
      row += c == '|' ? std::string("\\|") : std::string(1, c);  // a bar would end the cell
    }
    row += " |";
  }
  return row + "\n";
}

std::string markdown_of(const Grid& grid) {
  std::string text = markdown_row(grid.rows.front()) + "|";
  for (size_t i = 0; i < grid.rows.front().size(); ++i) {
    text += grid.align(i) == Align::left ? " --- |" : " ---: |";
  }
  text += "\n";
  for (size_t i = 1; i < grid.rows.size(); ++i) {
    text += markdown_row(grid.rows[i]);
  }
  return text + "\n";
}

std::string text_of(const Grid& grid) {
  std::vector<Align> alignment;
  for (size_t i = 0; i < grid.rows.front().size(); ++i) {
    alignment.push_back(grid.align(i));
  }
  Table columns(alignment, grid.rows.front());
  for (size_t i = 1; i < grid.rows.size(); ++i) {
    columns.row(grid.rows[i]);
  }
  return columns.text();
}

// A few decades want a scale of powers of ten.
bool spans_decades(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return !values.empty() && *least > 0 && *most > 1000 * *least;
}

std::vector<double> column_of(const ClaimTable& table, size_t column) {
  return mapped(table.rows, [&](const std::vector<double>& row) { return row[column]; });
}

}  // namespace

Figure figure_of(const ClaimTable& table) {
  const bool named = !table.names.empty();
  Figure figure{.kind = named ? FigureKind::bars : FigureKind::lines, .title = table.title};
  const std::vector<double> first = column_of(table, 0);
  figure.x = named ? FigureAxis{.words = table.rows_are, .names = table.names}
                   : FigureAxis{.words = table.columns[0], .log = spans_decades(first)};
  figure.y = {.words = table.measured};
  std::vector<double> places(table.rows.size());
  std::iota(places.begin(), places.end(), 0.0);
  bool drawn = false;  // the column before
  for (size_t i = named ? 0 : 1; i < table.columns.size(); ++i) {
    if (table.columns[i] == spread_column) {
      if (drawn) {
        figure.series.back().spread = column_of(table, i);
      }
      continue;
    }
    drawn = std::ranges::find(table.settings, table.columns[i]) == table.settings.end();
    if (!drawn) {
      continue;
    }
    figure.series.push_back({.name = table.columns[i], .x = named ? places : first, .y = column_of(table, i)});
    figure.y.log = figure.y.log || (!named && spans_decades(figure.series.back().y));
  }
  const bool spread = std::ranges::any_of(figure.series, [](const Series& series) { return !series.spread.empty(); });
  figure.words = spread ? fmt::format("The band is {}.", table.band) : "";
  return figure;
}

Measured measure(const PaperClaim& claim, const Trial& trial) {
  const std::clock_t started = std::clock();  // of all threads: what else runs on the machine does not count
  Outcome outcome = claim.measure(trial);
  // Of what nobody has trained yet there is nothing to show.
  std::erase_if(outcome.tables, [](const ClaimTable& table) { return table.rows.empty(); });
  std::erase_if(outcome.figures, [](const Figure& figure) { return figure.series.empty() && figure.panels.empty(); });
  // What is said of algebra explains the verdict that is recorded; numbers that come to another must not wear it.
  if (!claim.of_activations && !claim.of_times && !claim.trains() && outcome.verdict != claim.recorded) {
    outcome.because =
        fmt::format("so say the numbers, against the verdict that is recorded, \"{}\"", to_words(claim.recorded));
  }
  if (!outcome.partial.empty()) {
    outcome.verdict = ClaimVerdict::undecided;
    outcome.because = fmt::format("interrupted, with {} done", outcome.partial);
  }
  const double seconds = static_cast<double>(std::clock() - started) / CLOCKS_PER_SEC;
  return {&claim, trial, std::move(outcome), seconds};
}

// What a verdict in seconds is worth; empty where it is the recorded one's scale.
static std::string scale_note(const Measured& measured) {
  const PaperClaim& claim = *measured.claim;
  return measured.trial.scale != ClaimScale::smoke || claim.recorded_at == ClaimScale::smoke
             ? ""
             : fmt::format("seconds, on small random models. The recorded verdict is of --scale {}",
                           to_words(claim.recorded_at));
}

std::string text_of(const Measured& measured) {
  const PaperClaim& claim = *measured.claim;
  const Outcome& outcome = measured.outcome;
  std::string text = wrapped(claim.says, 11, "claim      ");
  text += wrapped(fmt::format("paper {}, {}", to_words(claim.paper), claim.place), 11, "from       ");
  if (const std::string scale = scale_note(measured); !scale.empty()) {
    text += wrapped("smoke: " + scale, 11, "scale      ");
  }
  text += "\n" + text_of(grid_of(outcome.compared));
  for (const ClaimTable& table : outcome.tables) {
    text += "\n" + wrapped(table.title, 0) + text_of(grid_of(table));
  }
  text += "\n" + wrapped(fmt::format("{}: {}", to_words(outcome.verdict), outcome.because), 11, "verdict    ");
  if (outcome.verdict != claim.recorded) {
    text += wrapped(fmt::format("{}, by {}", to_words(claim.recorded), recorded_run(claim)), 11, "recorded   ");
  }
  return text;
}

std::string page_of(const Measured& measured) {
  const PaperClaim& claim = *measured.claim;
  const Outcome& outcome = measured.outcome;
  std::string page = fmt::format(
      "# {}\n\nWhat one claim of a paper says, what was measured, and how to repeat it.\n\n"
      "**Claim** ({}, {}): {}\n\n**Verdict**: **{}**. Reason: {}.\n\n## How to repeat it\n\n```\n{}\n```\n\nCost: "
      "{}.\n\n",
      claim.id, citation_of(claim.paper), claim.place, claim.says, to_words(outcome.verdict), outcome.because,
      command_of(measured), cost_of(measured));
  if (claim.trains()) {
    page += fmt::format("`pare reproduce {}` alone runs it at smoke scale: seconds on a CPU, and no verdict.\n\n",
                        claim.id);
  }
  if (claim.trains() && measured.trial.scale != ClaimScale::full) {
    page += fmt::format("{}: {}.\n\n",
                        claim.paper_trained ? "Cost of the paper's own size (`--scale full`), which was not run"
                                            : "The paper trained no model. Cost at a realistic size",
                        claim.cost_in_full);
  }
  page += "## Claimed and measured\n\n" + (outcome.how.empty() ? "" : outcome.how + ".\n\n") +
          markdown_of(grid_of(outcome.compared));
  for (const ClaimTable& table : outcome.tables) {
    page += fmt::format("{}:\n\n", table.title) + markdown_of(grid_of(table));
  }
  for (size_t i = 0; i < drawn_figures(measured); ++i) {
    page += fmt::format("![{}]({})\n\n", outcome.figures[i].title, picture_name(i));
  }
  return page + "## Next\n\n" +
         (claim.discussed.empty() ? ""
                                  : fmt::format("What follows from these numbers: [{0}]({0}). ", claim.discussed)) +
         "[All claims](../README.md), [the papers](../../docs/papers.md).\n";
}

std::map<std::string, std::string> pictures_of(const Measured& measured) {
  std::map<std::string, std::string> pictures;
  for (size_t i = 0; i < drawn_figures(measured); ++i) {
    pictures[picture_name(i)] = to_svg(measured.outcome.figures[i]);
  }
  return pictures;
}

nlohmann::ordered_json to_json(const Measured& measured) {
  const PaperClaim& claim = *measured.claim;
  nlohmann::ordered_json json = {{"claim", claim.id},
                                 {"paper", to_words(claim.paper)},
                                 {"place", claim.place},
                                 {"says", claim.says},
                                 {"scale", to_words(measured.trial.scale)},
                                 {"seed", measured.trial.seed},
                                 {"verdict", to_words(measured.outcome.verdict)},
                                 {"because", measured.outcome.because},
                                 {"cost", cost_of(measured)},
                                 {"compared", nlohmann::ordered_json::array()},
                                 {"tables", nlohmann::ordered_json::array()}};
  if (!measured.outcome.partial.empty()) {
    json["partial"] = true;
  }
  for (const Compared& row : measured.outcome.compared) {
    json["compared"].push_back({{"what", row.what}, {"claimed", row.claimed}, {"measured", row.measured}});
  }
  for (const ClaimTable& table : measured.outcome.tables) {
    nlohmann::ordered_json of_table = {
        {"title", table.title}, {"measured", table.measured}, {"columns", table.columns}, {"rows", table.rows}};
    if (!table.names.empty()) {
      of_table["rows_are"] = table.rows_are;
      of_table["names"] = table.names;
    }
    if (!table.notes.empty()) {
      of_table["notes_are"] = table.notes_are;
      of_table["notes"] = table.notes;
    }
    json["tables"].push_back(std::move(of_table));
  }
  return json;
}

Report report_of(const Measured& measured, const std::string& time, const std::vector<Fact>& hashes) {
  const PaperClaim& claim = *measured.claim;
  const Outcome& outcome = measured.outcome;
  const Tone tone = outcome.verdict == ClaimVerdict::holds             ? Tone::good
                    : outcome.verdict == ClaimVerdict::holds_corrected ? Tone::fair
                    : outcome.verdict == ClaimVerdict::does_not_hold   ? Tone::bad
                                                                       : Tone::neutral;
  Report report{.title = fmt::format("A claim, measured: {}", claim.id), .summary = claim.says};
  report.measured = {{"command", command_of(measured)},
                     {"measured", time},
                     {"version", "pare " PARE_VERSION},
                     {"claimed in", fmt::format("{}, {}", citation_of(claim.paper), claim.place)},
                     {"cost", cost_of(measured)}};
  report.fingerprint = hashes;
  if (!outcome.partial.empty()) {
    report.partial = fmt::format("Interrupted: {} were done, and decide nothing.", outcome.partial);
  }
  report.verdicts = {
      {.name = "Does the claim hold?", .word = to_words(outcome.verdict), .words = outcome.because, .tone = tone}};
  if (const std::string scale = scale_note(measured); !scale.empty()) {
    report.verdicts.push_back({.name = "At which scale?", .word = "smoke", .words = scale + "."});
  }
  std::vector<std::vector<std::string>> rows = grid_of(outcome.compared).rows;
  const ReportTable compared{"Claimed and measured", rows.front(), {rows.begin() + 1, rows.end()}};
  report.sections = {
      {.title = "Claimed and measured", .words = outcome.how.empty() ? "" : outcome.how + ".", .tables = {compared}}};
  std::vector<Figure>& figures = report.sections.front().figures;
  for (const ClaimTable& table : outcome.tables) {
    figures.push_back(figure_of(table));
  }
  figures.insert(figures.end(), outcome.figures.begin(), outcome.figures.end());
  return report;
}

std::string list_of_claims() {
  std::string text;
  std::optional<Paper> paper;
  std::vector<std::string> runs;  // that differ by more than the claim; the first has no mark, the second *, ...
  const auto mark_of = [&runs](PaperClaim claim) -> std::string {
    if (claim.recorded == ClaimVerdict::undecided) {
      return "";  // for want of runs
    }
    claim.id = "CLAIM";
    const auto place = std::ranges::find(runs, recorded_run(claim));
    const size_t number = static_cast<size_t>(place - runs.begin());
    if (place == runs.end()) {
      runs.push_back(recorded_run(claim));
    }
    return number == 0 ? "" : " " + std::string(number, '*');
  };
  for (const StatedClaim& claim : stated_claims()) {
    if (paper != claim.paper) {
      text += fmt::format("{}paper {}\n", text.empty() ? "" : "\n", to_words(claim.paper));
      paper = claim.paper;
    }
    const PaperClaim* experiment = claim.is_experiment() ? find_claim(claim.name) : nullptr;
    const std::string name = experiment           ? claim.name + mark_of(*experiment)
                             : claim.name.empty() ? "-"
                                                  : fmt::format("({})", claim.name);
    text += fmt::format("  {:<26}{:<25}{}\n", name, to_words(claim.verdict), claim.place);
    text += claim.number.empty() ? "" : fmt::format("{:28}{}\n", "", claim.number);
    text += claim.would_take.empty() ? "" : wrapped("would take " + claim.would_take, 28, std::string(28, ' '));
  }
  text += "\nThe verdicts are those of these runs:\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    text += wrapped(runs[i], 6, fmt::format("  {:<4}", std::string(i, '*')));
  }
  return text + "\n" +
         wrapped(tally_of_claims() +
                     ". In brackets: not run by itself, but shown by that pass, page or other claim, and computed by a "
                     "test of its own in " +
                     std::string(tests_of_stated) + ". What each says, and what was measured: experiments/README.md",
                 0);
}

std::string page_of_claims() {
  std::string page = fmt::format(
      "# What the papers claim, and what was measured\n\n"
      "The list of all claims of [six papers](../docs/papers.md), with a verdict and the number that decides it. "
      "{}.\n\n"
      "A claim with a folder here is an experiment: `pare reproduce ID` repeats it, and the folder has its numbers and "
      "the command of the recorded run. The others link to the page that shows them; a test case in `{}` computes "
      "each. Of what nobody has measured, the last column says what it would take.\n\n"
      "`pare reproduce --list --markdown` prints this page.\n\n",
      tally_of_claims(), tests_of_stated);
  Grid grid{.rows = {{"claim", "where", "it says", "verdict", "number"}}, .worded = true};
  const auto from_here = [](const std::string& path) {
    const std::string here = "experiments/";
    return path.starts_with(here) ? path.substr(here.size()) : "../" + path;
  };
  for (const StatedClaim& claim : stated_claims()) {
    grid.rows.push_back({claim.page.empty() ? "" : fmt::format("[{}]({})", claim.name, from_here(claim.page)),
                         fmt::format("{}, {}", citation_of(claim.paper), claim.place), claim.says,
                         to_words(claim.verdict),
                         claim.would_take.empty() ? claim.number : "would take " + claim.would_take});
  }
  return page + markdown_of(grid) +
         "Next: [the papers](../docs/papers.md), [how runs are trained](../docs/training.md), [how claims are decided]"
         "(../docs/design.md).\n";
}

nlohmann::ordered_json claims_to_json() {
  nlohmann::ordered_json claims = nlohmann::ordered_json::array(), further = nlohmann::ordered_json::array();
  for (const StatedClaim& claim : stated_claims()) {
    nlohmann::ordered_json json = {
        {"paper", to_words(claim.paper)},     {"place", claim.place},   {"says", claim.says},
        {"verdict", to_words(claim.verdict)}, {"number", claim.number}, {"page", claim.page}};
    if (claim.is_experiment()) {
      json["claim"] = claim.name;
      json["command"] = recorded_run(*find_claim(claim.name));
      claims.push_back(std::move(json));
    } else {
      json["test"] = claim.test;
      json["would_take"] = claim.would_take;
      further.push_back(std::move(json));
    }
  }
  return {{"claims", claims}, {"further", further}};
}

}  // namespace pare
