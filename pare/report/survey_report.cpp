#include "pare/report/pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>

#include "pare/audit/survey.h"
#include "pare/support/mapped.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

double percent(int64_t part, int64_t whole) {
  return 100 * static_cast<double>(part) / static_cast<double>(whole);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// "0.25 %", and of which model the least and the most.
ReportVerdict spread_verdict(std::string name, std::string words, const std::vector<SurveyRow>& rows,
                             const std::vector<double>& shares) {
  const auto [least, most] = std::ranges::minmax_element(shares);
  return {.name = std::move(name),
          .word = fmt::format("{:.2f} %", median(shares)),
          .number = fmt::format("median of {}: {:.2f} % of {} to {:.2f} % of {}", rows.size(), *least,
                                rows[least - shares.begin()].name, *most, rows[most - shares.begin()].name),
          .words = std::move(words)};
}

std::vector<double> shares_without(const std::vector<SurveyRow>& rows, std::string_view what) {
  return mapped(rows, [what](const SurveyRow& row) { return percent(removable_without(row, what), row.parameters); });
}

ReportVerdict cache_verdict(const std::vector<SurveyRow>& rows) {
  const auto cached = std::ranges::count_if(rows, [](const SurveyRow& row) { return row.cache > 0; });
  const auto less = std::ranges::count_if(rows, [](const SurveyRow& row) { return row.cache_left < row.cache; });
  return {.name = "Caches that get smaller, exactly",
          .word = fmt::format("{} of {}", less, cached),
          .number = fmt::format("{} models decode with a cache", cached),
          .words =
              "Values can be computed from keys where a layer has as many key/value dimensions as the model is "
              "wide. Fewer of them, shared by several query heads, leave nothing to compute from."};
}

std::vector<ReportVerdict> verdicts_of(const std::vector<SurveyRow>& rows) {
  if (rows.empty()) {
    return {};
  }
  const auto share = [](int64_t SurveyRow::*member) {
    return [member](const SurveyRow& row) { return percent(row.*member, row.parameters); };
  };
  return {
      spread_verdict("Redundant parameters", "Directions in which the weights can move without changing the function.",
                     rows, mapped(rows, share(&SurveyRow::redundant))),
      spread_verdict("A file can lose now, exactly",
                     "Rotations only make zeros inside dense matrices, so a file can lose fewer than are redundant.",
                     rows, mapped(rows, share(&SurveyRow::removable))),
      cache_verdict(rows),
      spread_verdict("Without norms and MLP skips",
                     "What a file could lose once these are trained away. That changes the function and costs some "
                     "loss: the page of pare audit MODEL has the commands and what they cost where it was measured.",
                     rows, shares_without(rows, "MLP skips"))};
}

Figure shares_figure(const std::vector<SurveyRow>& rows) {
  Figure figure{.kind = FigureKind::scatter,
                .title = "Redundant against removable",
                .words =
                    "Each point is a model, each colour a kind of norm. Where a point lies low for its place to "
                    "the right, rotations of the residual stream are most of what is redundant, and no file gets "
                    "smaller by them.",
                .x = {.words = "redundant parameters", .unit = "%", .log = true},
                .y = {.words = "a file can lose", .unit = "%", .log = true}};
  std::map<std::string, Series> by_norms;
  for (const SurveyRow& row : rows) {
    const std::string norms = norms_in_words(row.architecture);
    Series& series = by_norms.try_emplace(norms, Series{.name = norms}).first->second;
    series.x.push_back(percent(row.redundant, row.parameters));
    series.y.push_back(percent(row.removable, row.parameters));
    series.labels.push_back(row.name);
  }
  figure.series = mapped(by_norms, [](const auto& entry) { return entry.second; });
  return figure;
}

// What is not there is a gap: nothing is gained where nothing is taken away.
Figure obstacles_figure(const std::vector<SurveyRow>& rows) {
  Figure figure{.kind = FigureKind::heat_map,
                .title = "What stands in the way",
                .words =
                    "From left to right, more is taken away: norms, then also the skips around MLPs, then all "
                    "skips, then rotary positions. A jump in colour is what stood in the way. A gap is what the "
                    "model does not have.",
                .x = {.words = "without", .names = {"nothing"}},
                .y = {.words = "model"},
                .value = {.words = "a file can lose", .unit = "%", .log = true},
                .panels = {Panel{.name = "models"}}};
  for (const std::string_view name : obstacle_names()) {
    figure.x.names.push_back(fmt::format("{}{}", figure.x.names.size() == 1 ? "" : "+ ", name));
  }
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {  // the first name is drawn at the bottom
    figure.y.names.push_back(row->name);
    std::vector<double> values = {percent(row->removable, row->parameters)};
    for (const std::string_view name : obstacle_names()) {
      const auto found = std::ranges::find(row->obstacles, name, &Obstacle::what);
      values.push_back(found == row->obstacles.end() ? std::numeric_limits<double>::quiet_NaN()
                                                     : percent(found->removable, row->parameters));
    }
    figure.panels.front().values.push_back(std::move(values));
  }
  return figure;
}

std::string cache_cell(const SurveyRow& row) {
  return row.cache == 0                ? "none"
         : row.cache == row.cache_left ? "0 %"
                                       : fmt::format("{:.0f} %", percent(row.cache - row.cache_left, row.cache));
}

ReportTable shares_table(const std::vector<SurveyRow>& rows) {
  ReportTable table{"", {"model", "parameters", "redundant", "a file can lose", "the cache"}, {}};
  for (const std::string_view name : obstacle_names()) {
    table.columns.push_back(fmt::format("{} {}", table.columns.size() == 5 ? "without" : "+", name));
  }
  for (const SurveyRow& row : rows) {
    std::vector<std::string> cells = {row.name, with_commas(row.parameters),
                                      (row.at_least ? "≥ " : "") + share_text(row.redundant, row.parameters),
                                      share_text(row.removable, row.parameters), cache_cell(row)};
    for (const std::string_view name : obstacle_names()) {
      const auto found = std::ranges::find(row.obstacles, name, &Obstacle::what);
      cells.push_back(found == row.obstacles.end() ? "–" : share_text(found->removable, row.parameters));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

ReportTable passes_table(const std::vector<SurveyRow>& rows) {
  ReportTable table{"", {"model", "redundant", "a file can lose", "by", "in the way of more", "norms"}, {}};
  for (const SurveyRow& row : rows) {
    const std::vector<std::string> passes = mapped(
        row.taken, [](const auto& entry) { return fmt::format("{}\u00a0{}", entry.first, with_commas(entry.second)); });
    table.rows.push_back({row.name, (row.at_least ? "≥ " : "") + with_commas(row.redundant), with_commas(row.removable),
                          fmt::format("{}", fmt::join(passes, "\n")),
                          fmt::format("{}", fmt::join(row.in_the_way, ", ")), norms_in_words(row.architecture)});
  }
  return table;
}

}  // namespace

Report survey_report(const std::vector<SurveyRow>& rows, const ReportOrigin& origin) {
  Report report{.title = "What well-known models can do without",
                .summary =
                    "For each model: how many parameters are redundant, what a file and the cache can lose "
                    "exactly, and what stands in the way of more.",
                .measured = facts_of(origin),
                .verdicts = verdicts_of(rows)};
  report.measured.push_back({"models", fmt::format("{} architectures without weights", rows.size())});
  report.sections = {
      {.title = "At a glance", .words = "", .figures = {obstacles_figure(rows)}, .tables = {}},
      {.title = "Every model, in shares of its parameters",
       .words =
           "Click a heading to sort by it. Redundant, what a file can lose and what the cache can lose hold now: the "
           "function stays the same for every input. The last columns are what a file could lose if more and more "
           "were gone: norms and the skips around MLPs have been trained away, at a cost; models without skips have "
           "only been trained from nothing.",
       .figures = {},
       .tables = {shares_table(rows)}},
      {.title = "Redundant is not removable", .words = "", .figures = {shares_figure(rows)}, .tables = {}},
      {.title = "By which passes, and what stands in the way",
       .words =
           "Each pass is an exact rewrite, and takes so many parameters behind those before it. In the way is what "
           "alone would keep a file from losing what it could lose without all of these.",
       .figures = {},
       .tables = {passes_table(rows)}}};
  return report;
}

}  // namespace pare
