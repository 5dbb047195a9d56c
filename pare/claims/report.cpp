#include "pare/claims/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pare/claims/draws.h"
#include "pare/support/text.h"

namespace pare {

namespace {

std::string command_of(const Measured& measured) {
  std::string command = "pare reproduce " + measured.claim->id;
  command += measured.trial.scale == ClaimScale::small ? " --scale small" : "";
  for (const std::filesystem::path& model : measured.trial.models) {
    command += " --model " + model.filename().string();
  }
  command += measured.trial.text.empty() ? "" : " --text " + measured.trial.text.filename().string();
  return command + (measured.trial.seed == 0 ? "" : fmt::format(" --seed {}", measured.trial.seed));
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

std::string markdown_of(const ClaimTable& table) {
  std::string text = fmt::format("{}:\n\n", table.title) + markdown_row(table.columns);
  text += markdown_row(std::vector<std::string>(table.columns.size(), "---:"));
  for (const std::vector<double>& row : table.rows) {
    std::vector<std::string> cells;
    for (const double number : row) {
      cells.push_back(shown(number));
    }
    text += markdown_row(cells);
  }
  return text + "\n";
}

// A few decades want a scale of powers of ten.
bool spans_decades(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return !values.empty() && *least > 0 && *most > 1000 * *least;
}

// The first column is what the others are measured against.
Figure figure_of(const ClaimTable& table) {
  std::vector<std::vector<double>> columns(table.columns.size());
  for (const std::vector<double>& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      columns[i].push_back(row[i]);
    }
  }
  Figure figure{.kind = FigureKind::lines, .title = table.title};
  figure.x = {.words = table.columns[0], .log = spans_decades(columns[0])};
  figure.y = {.words = "measured"};
  for (size_t i = 1; i < columns.size(); ++i) {
    figure.series.push_back({.name = table.columns[i], .x = columns[0], .y = columns[i]});
    figure.y.log = figure.y.log || spans_decades(columns[i]);
  }
  return figure;
}

std::string text_of(const ClaimTable& table) {
  Table columns(std::vector<Align>(table.columns.size(), Align::right));
  columns.row(table.columns);
  columns.rule();
  for (const std::vector<double>& row : table.rows) {
    std::vector<std::string> cells;
    for (const double number : row) {
      cells.push_back(shown(number));
    }
    columns.row(cells);
  }
  return fmt::format("\n{}\n{}", table.title, columns.text());
}

}  // namespace

Measured measure(const PaperClaim& claim, const Trial& trial) {
  const auto started = std::chrono::steady_clock::now();
  Outcome outcome = claim.measure(trial);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - started;
  return {&claim, trial, std::move(outcome), taken.count()};
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
  return text + "\n" + wrapped(fmt::format("{}: {}", to_words(outcome.verdict), outcome.because), 11, "verdict    ");
}

std::string page_of(const Measured& measured) {
  const PaperClaim& claim = *measured.claim;
  const Outcome& outcome = measured.outcome;
  std::string page =
      fmt::format("# {}\n\n{} (paper {}, {})\n\n", claim.id, claim.says, to_words(claim.paper), claim.place);
  page += fmt::format("**{}**: {}.\n\n", to_words(outcome.verdict), outcome.because);
  page += fmt::format("```\n{}\n```\n\nCost: {} on two cores.\n\n", command_of(measured),
                      measured.seconds < 1 ? "under a second" : human_time(std::ceil(measured.seconds)));
  page += markdown_row({"", "claimed", "measured"}) + markdown_row({"---", "---:", "---:"});
  for (const Compared& row : outcome.compared) {
    page += markdown_row({cell(row.what), cell(row.claimed), cell(row.measured)});
  }
  page += "\n";
  for (const ClaimTable& table : outcome.tables) {
    page += markdown_of(table);
  }
  page.pop_back();
  return page;
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
                                 {"compared", nlohmann::ordered_json::array()},
                                 {"tables", nlohmann::ordered_json::array()}};
  for (const Compared& row : measured.outcome.compared) {
    json["compared"].push_back({{"what", row.what}, {"claimed", row.claimed}, {"measured", row.measured}});
  }
  for (const ClaimTable& table : measured.outcome.tables) {
    json["tables"].push_back({{"title", table.title}, {"columns", table.columns}, {"rows", table.rows}});
  }
  return json;
}

Report report_of(const Measured& measured) {
  const PaperClaim& claim = *measured.claim;
  const Outcome& outcome = measured.outcome;
  const Tone tone = outcome.verdict == ClaimVerdict::holds             ? Tone::good
                    : outcome.verdict == ClaimVerdict::holds_corrected ? Tone::fair
                    : outcome.verdict == ClaimVerdict::does_not_hold   ? Tone::bad
                                                                       : Tone::neutral;
  Report report{.title = claim.id, .summary = claim.says};
  report.measured = {{"command", command_of(measured)},
                     {"paper", to_words(claim.paper)},
                     {"place", claim.place},
                     {"seconds", fmt::format("{:.1f}", measured.seconds)}};
  report.verdicts = {{.name = "The claim", .word = to_words(outcome.verdict), .words = outcome.because, .tone = tone}};
  ReportTable compared{"Claimed and measured", {"", "claimed", "measured"}, {}};
  for (const Compared& row : outcome.compared) {
    compared.rows.push_back({row.what, row.claimed, row.measured});
  }
  report.sections = {{.title = "Claimed and measured", .tables = {compared}}};
  for (const ClaimTable& table : outcome.tables) {
    report.sections.front().figures.push_back(figure_of(table));
  }
  return report;
}

std::string list_of_claims() {
  std::string text;
  std::optional<Paper> paper;
  for (const PaperClaim& claim : claims()) {
    if (paper != claim.paper) {
      text += fmt::format("{}paper {}\n", text.empty() ? "" : "\n", to_words(claim.paper));
      paper = claim.paper;
    }
    text += fmt::format("  {:<26}{:<25}{}\n", claim.id, to_words(claim.recorded), claim.place);
  }
  return text + "\nWhat each says, and what was measured: experiments/README.md\n";
}

std::string page_of_claims() {
  std::string page =
      "# What the papers claim, and what was measured\n\n"
      "Every row is an experiment that anybody can repeat: `pare reproduce ID`. A folder has its numbers. This page is "
      "printed by `pare reproduce --list --markdown`.\n\n";
  page += markdown_row({"claim", "where", "it says", "verdict"}) + markdown_row({"---", "---", "---", "---"});
  for (const PaperClaim& claim : claims()) {
    page += markdown_row({fmt::format("[{}]({}/README.md)", claim.id, claim.id),
                          fmt::format("paper {}, {}", static_cast<int>(claim.paper), claim.place), cell(claim.says),
                          to_words(claim.recorded)});
  }
  return page;
}

nlohmann::ordered_json claims_to_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PaperClaim& claim : claims()) {
    list.push_back({{"claim", claim.id},
                    {"paper", to_words(claim.paper)},
                    {"place", claim.place},
                    {"says", claim.says},
                    {"verdict", to_words(claim.recorded)}});
  }
  return {{"claims", list}};
}

}  // namespace pare
