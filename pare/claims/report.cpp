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
#include "pare/support/text.h"

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

// Of a cell in Markdown: a bar would end it.
std::string cell(const std::string& text) {
  std::string found;
  for (const char c : text) {
    found += c == '|' ? std::string("\\|") : std::string(1, c);
  }
  return found;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::vector<std::string> head_of(const ClaimTable& table) {
  std::vector<std::string> head = table.columns;
  if (!table.names.empty()) {
    head.insert(head.begin(), table.rows_are);
  }
  return head;
}

std::vector<std::string> cells_of(const ClaimTable& table, size_t row) {
  std::vector<std::string> cells;
  if (!table.names.empty()) {
    cells.push_back(table.names[row]);
  }
  for (const double number : table.rows[row]) {
    cells.push_back(shown(number, table.decimals));
  }
  return cells;
}

std::string markdown_of(const ClaimTable& table) {
  std::string text = fmt::format("{}:\n\n", table.title) + markdown_row(head_of(table));
  std::vector<std::string> rule(table.columns.size(), "---:");
  if (!table.names.empty()) {
    rule.insert(rule.begin(), "---");
  }
  text += markdown_row(rule);
  for (size_t row = 0; row < table.rows.size(); ++row) {
    std::vector<std::string> cells = cells_of(table, row);
    std::transform(cells.begin(), cells.end(), cells.begin(), cell);
    text += markdown_row(cells);
  }
  return text + "\n";
}

// A few decades want a scale of powers of ten.
bool spans_decades(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return !values.empty() && *least > 0 && *most > 1000 * *least;
}

std::vector<double> column_of(const ClaimTable& table, size_t column) {
  std::vector<double> values;
  for (const std::vector<double>& row : table.rows) {
    values.push_back(row[column]);
  }
  return values;
}

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
    drawn = std::find(table.settings.begin(), table.settings.end(), table.columns[i]) == table.settings.end();
    if (!drawn) {
      continue;
    }
    figure.series.push_back({.name = table.columns[i], .x = named ? places : first, .y = column_of(table, i)});
    figure.y.log = figure.y.log || (!named && spans_decades(figure.series.back().y));
  }
  const bool spread = std::any_of(figure.series.begin(), figure.series.end(),
                                  [](const Series& series) { return !series.spread.empty(); });
  figure.words = spread ? fmt::format("The band is {}.", table.band) : "";
  return figure;
}

std::string text_of(const ClaimTable& table) {
  std::vector<Align> alignment(table.columns.size(), Align::right);
  if (!table.names.empty()) {
    alignment.insert(alignment.begin(), Align::left);
  }
  Table columns(alignment);
  columns.row(head_of(table));
  columns.rule();
  for (size_t row = 0; row < table.rows.size(); ++row) {
    columns.row(cells_of(table, row));
  }
  return "\n" + wrapped(table.title, 0) + columns.text();
}

}  // namespace

Measured measure(const PaperClaim& claim, const Trial& trial) {
  const std::clock_t started = std::clock();  // of all threads: what else runs on the machine does not count
  Outcome outcome = claim.measure(trial);
  // Of what nobody has trained yet there is nothing to show.
  std::erase_if(outcome.tables, [](const ClaimTable& table) { return table.rows.empty(); });
  std::erase_if(outcome.figures, [](const Figure& figure) { return figure.series.empty() && figure.panels.empty(); });
  // What is said of algebra explains the verdict that is recorded; numbers that come to another must not wear it.
  if (!claim.of_activations && !claim.trains() && outcome.verdict != claim.recorded) {
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

std::string text_of(const Measured& measured) {
  const PaperClaim& claim = *measured.claim;
  const Outcome& outcome = measured.outcome;
  std::string text = wrapped(claim.says, 11, "claim      ");
  text += wrapped(fmt::format("paper {}, {}", to_words(claim.paper), claim.place), 11, "from       ");
  Table table({Align::left, Align::right, Align::right});
  table.row({"", "claimed", "measured"});
  table.rule();
  for (const Compared& row : outcome.compared) {
    table.row({row.what, row.claimed, row.measured});
  }
  text += "\n" + table.text();
  for (const ClaimTable& further : outcome.tables) {
    text += text_of(further);
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
  std::string page =
      fmt::format("# {}\n\n{} (paper {}, {})\n\n", claim.id, claim.says, to_words(claim.paper), claim.place);
  page += fmt::format("**{}**: {}.\n\n", to_words(outcome.verdict), outcome.because);
  page += claim.discussed.empty() ? "" : fmt::format("What follows from it: [{0}]({0}).\n\n", claim.discussed);
  page += fmt::format("```\n{}\n```\n\nCost: {}.\n\n", command_of(measured), cost_of(measured));
  page += claim.trains() ? fmt::format(
                               "`pare reproduce {}` alone does the same at smoke scale, in seconds on a CPU, and "
                               "decides nothing.\n\n",
                               claim.id)
                         : "";
  if (claim.trains() && measured.trial.scale != ClaimScale::full) {
    page += fmt::format(
        "{}: {}.\n\n",
        claim.paper_trained ? "What the paper trained (`--scale full`) was not run" : "The paper trained nothing",
        claim.cost_in_full);
  }
  page += outcome.how.empty() ? "" : outcome.how + ".\n\n";
  page += markdown_row({"", "claimed", "measured"}) + markdown_row({"---", "---:", "---:"});
  for (const Compared& row : outcome.compared) {
    page += markdown_row({cell(row.what), cell(row.claimed), cell(row.measured)});
  }
  page += "\n";
  for (const ClaimTable& table : outcome.tables) {
    page += markdown_of(table);
  }
  for (size_t i = 0; i < drawn_figures(measured); ++i) {
    page += fmt::format("![{}]({})\n\n", outcome.figures[i].title, picture_name(i));
  }
  page.pop_back();
  return page;
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
  Report report{.title = claim.id, .summary = claim.says};
  report.measured = {{"command", command_of(measured)},
                     {"measured", time},
                     {"version", "pare " PARE_VERSION},
                     {"claimed in", fmt::format("paper {}, {}", to_words(claim.paper), claim.place)},
                     {"cost", cost_of(measured)}};
  report.fingerprint = hashes;
  if (!outcome.partial.empty()) {
    report.partial = fmt::format("Interrupted: {} were done, and decide nothing.", outcome.partial);
  }
  report.verdicts = {{.name = "The claim", .word = to_words(outcome.verdict), .words = outcome.because, .tone = tone}};
  ReportTable compared{"Claimed and measured", {"", "claimed", "measured"}, {}};
  for (const Compared& row : outcome.compared) {
    compared.rows.push_back({row.what, row.claimed, row.measured});
  }
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
    const auto place = std::find(runs.begin(), runs.end(), recorded_run(claim));
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
  }
  text += "\nThe verdicts are those of these runs:\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    text += wrapped(runs[i], 6, fmt::format("  {:<4}", std::string(i, '*')));
  }
  return text + "\n" +
         wrapped(tally_of_claims() +
                     ". In brackets: not run by itself, but shown by that pass, page or other claim, and computed by a "
                     "test of its "
                     "own in " +
                     std::string(tests_of_stated) + ". What each says, and what was measured: experiments/README.md",
                 0);
}

std::string page_of_claims() {
  std::string page = fmt::format(
      "# What the papers claim, and what was measured\n\n"
      "{}. A claim with a folder here is an experiment that anybody can repeat: `pare reproduce ID`; the folder has "
      "its numbers, and the command that came to the verdict. The others are shown by the page that they name, and a "
      "test case of `{}` computes them, some from kept runs and certificates. The "
      "number is the one that the verdict hangs on. This page is printed by `pare reproduce --list --markdown`.\n\n",
      tally_of_claims(), tests_of_stated);
  page += markdown_row({"claim", "where", "it says", "verdict", "number"}) +
          markdown_row({"---", "---", "---", "---", "---"});
  const auto from_here = [](const std::string& path) {
    const std::string here = "experiments/";
    return path.starts_with(here) ? path.substr(here.size()) : "../" + path;
  };
  for (const StatedClaim& claim : stated_claims()) {
    page += markdown_row({claim.page.empty() ? "" : fmt::format("[{}]({})", claim.name, from_here(claim.page)),
                          fmt::format("paper {}, {}", static_cast<int>(claim.paper), claim.place), cell(claim.says),
                          to_words(claim.verdict), cell(claim.number)});
  }
  return page;
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
      further.push_back(std::move(json));
    }
  }
  return {{"claims", claims}, {"further", further}};
}

}  // namespace pare
