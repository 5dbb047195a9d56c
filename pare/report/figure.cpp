#include "pare/report/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pare/report/html.h"
#include "pare/support/error.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

using Json = nlohmann::ordered_json;

bool has_panels(const Figure& figure) {
  return figure.kind == FigureKind::heat_map || figure.kind == FigureKind::matrix;
}

Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json numbers_json(const std::vector<double>& values) {
  return mapped(values, number_json);
}

Json axis_json(const FigureAxis& axis) {
  Json json = {{"words", axis.words}, {"unit", axis.unit}, {"log", axis.log}};
  if (!axis.names.empty()) {
    json["names"] = axis.names;
  }
  for (const auto& [key, bound] : {std::pair{"least", axis.least}, std::pair{"most", axis.most}}) {
    if (bound) {
      json[key] = *bound;
    }
  }
  return json;
}

Json series_json(const Series& series) {
  Json json = {{"name", series.name}, {"x", numbers_json(series.x)}, {"y", numbers_json(series.y)}};
  if (!series.spread.empty()) {
    json["spread"] = numbers_json(series.spread);
  }
  if (!series.labels.empty()) {
    json["labels"] = series.labels;
  }
  if (series.order) {
    json["order"] = number_json(*series.order);
  }
  return json;
}

std::string cell(const char* tag, const std::string& text) {
  return fmt::format("<{0}>{1}</{0}>", tag, html_text(text));
}

std::string place_name(const FigureAxis& axis, double place) {
  return axis.names.empty() ? number_text(place) : axis.names[place];
}

bool share_places(const std::vector<Series>& list) {
  return std::ranges::all_of(list, [&](const Series& series) { return series.x == list.front().x; });
}

std::string value_cells(const Series& series, size_t i) {
  std::string cells = cell("td", number_text(series.y[i]));
  if (!series.spread.empty()) {
    cells += cell("td", number_text(series.spread[i]));
  }
  return cells;
}

// A column for each series, where all have the same places.
FigureTable side_by_side(const Figure& figure) {
  std::string head = cell("th", axis_title(figure.x));
  for (const Series& series : figure.series) {
    const std::string name = series.name.empty() ? axis_title(figure.y) : series.name;
    head += cell("th", name) + (series.spread.empty() ? "" : cell("th", "±"));
  }
  std::string rows;
  const std::vector<double>& places = figure.series.front().x;
  for (size_t i = 0; i < places.size(); ++i) {
    std::string cells = cell("th", place_name(figure.x, places[i]));
    for (const Series& series : figure.series) {
      cells += value_cells(series, i);
    }
    rows += fmt::format("<tr>{}</tr>\n", cells);
  }
  return {fmt::format("<table><caption>{}</caption><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table>\n",
                      html_text(axis_title(figure.y)), head, rows),
          places.size()};
}

// A row for each point.
FigureTable one_below_the_other(const Figure& figure) {
  const auto any = [&figure](const auto& has) { return std::ranges::any_of(figure.series, has); };
  const bool labelled = any([](const Series& series) { return !series.labels.empty(); });
  const bool spread = any([](const Series& series) { return !series.spread.empty(); });
  FigureTable table;
  std::string rows;
  for (const Series& series : figure.series) {
    for (size_t i = 0; i < series.x.size(); ++i) {
      rows += "<tr>" + cell("th", series.name) +
              (labelled ? cell("td", series.labels.empty() ? "" : series.labels[i]) : "") +
              cell("td", place_name(figure.x, series.x[i])) + value_cells(series, i) +
              (spread && series.spread.empty() ? "<td></td>" : "") + "</tr>\n";
      ++table.rows;
    }
  }
  const std::string head = cell("th", "series") + (labelled ? cell("th", "point") : "") +
                           cell("th", axis_title(figure.x)) + cell("th", axis_title(figure.y)) +
                           (spread ? cell("th", "±") : "");
  table.html = fmt::format("<table><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table>\n", head, rows);
  return table;
}

FigureTable panels_table(const Figure& figure) {
  FigureTable table;
  for (const Panel& panel : figure.panels) {
    std::string head = cell("th", fmt::format("{} ↓ {} →", figure.y.words, figure.x.words)), rows;
    for (const std::string& name : figure.x.names) {
      head += cell("th", name);
    }
    for (size_t row = 0; row < panel.values.size(); ++row) {
      std::string cells = cell("th", figure.y.names[row]);
      for (const double value : panel.values[row]) {
        cells += cell("td", number_text(value));
      }
      rows += fmt::format("<tr>{}</tr>\n", cells);
    }
    const std::string caption =
        axis_title(figure.value) + (panel.name.empty() ? "" : fmt::format(", {} {}", figure.panel_words, panel.name));
    table.html += fmt::format("<table><caption>{}</caption><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table>\n",
                              html_text(caption), head, rows);
    table.rows += panel.values.size();
  }
  return table;
}

void check_series(const Figure& figure, const Series& series) {
  const size_t points = series.x.size();
  PARE_CHECK(series.y.size() == points, fmt::format("{}: x and y of {} differ in length", figure.title, series.name));
  PARE_CHECK(series.spread.empty() || series.spread.size() == points, figure.title + ": spread of another length");
  PARE_CHECK(series.labels.empty() || series.labels.size() == points, figure.title + ": labels of another length");
  if (!figure.x.names.empty()) {
    for (const double place : series.x) {
      PARE_CHECK(place >= 0 && place < static_cast<double>(figure.x.names.size()) && place == std::floor(place),
                 figure.title + ": a place that has no name");
    }
  }
}

struct Values {
  std::vector<double> numbers;
  size_t gaps = 0;
  bool scatter = false;  // some of them have a spread

  void add(double value) {
    if (std::isfinite(value)) {
      numbers.push_back(value);
    } else {
      ++gaps;
    }
  }
};

Values values_of(const Figure& figure) {
  Values values;
  for (const Series& series : figure.series) {
    std::for_each(series.y.begin(), series.y.end(), [&values](double y) { values.add(y); });
    values.scatter = values.scatter || std::ranges::any_of(series.spread, [](double spread) {
                       return std::isfinite(spread) && spread > 0;
                     });
  }
  for (const Panel& panel : figure.panels) {
    for (const std::vector<double>& row : panel.values) {
      std::for_each(row.begin(), row.end(), [&values](double value) { values.add(value); });
    }
  }
  return values;
}

}  // namespace

std::optional<std::string> constant_text(const Figure& figure) {
  const Values values = values_of(figure);
  if (values.numbers.empty() || values.scatter) {
    return std::nullopt;
  }
  const auto [least, most] = std::minmax_element(values.numbers.begin(), values.numbers.end());
  constexpr double same = 1e-12;  // rounding of what is the same
  if (*most - *least > same * std::max(std::abs(*least), std::abs(*most))) {
    return std::nullopt;
  }
  const FigureAxis& axis = has_panels(figure) ? figure.value : figure.y;
  const bool named = values.numbers.size() == 1 && figure.series.size() == 1 && figure.x.names.size() == 1;
  const std::string number =
      fmt::format("{} = {}{}{}", axis.words, number_text(*most), axis.unit.empty() ? "" : " " + axis.unit,
                  named ? fmt::format(" ({})", figure.x.names.front()) : "");
  std::string text = values.numbers.size() == 1 && values.gaps == 0 ? fmt::format("One number: {}", number)
                     : values.gaps == 0
                         ? fmt::format("The same everywhere: {} ({} numbers)", number, values.numbers.size())
                         : fmt::format("The same wherever it is defined: {} ({} of {} numbers)", number,
                                       values.numbers.size(), values.numbers.size() + values.gaps);
  for (const Mark& mark : figure.marks) {
    text += fmt::format("; {}: {}", mark.name, number_text(mark.value));
  }
  return text + ".";
}

std::string axis_title(const FigureAxis& axis) {
  return axis.unit.empty() ? axis.words : fmt::format("{} ({})", axis.words, axis.unit);
}

const char* word(FigureKind kind) {
  switch (kind) {
    case FigureKind::lines:
      return "lines";
    case FigureKind::bars:
      return "bars";
    case FigureKind::scatter:
      return "scatter";
    case FigureKind::heat_map:
      return "heat_map";
    case FigureKind::matrix:
      return "matrix";
  }
  PARE_UNREACHABLE("no such figure");
}

Json to_json(const Figure& figure) {
  Json json = {{"kind", word(figure.kind)},
               {"title", figure.title},
               {"words", figure.words},
               {"x", axis_json(figure.x)},
               {"y", axis_json(figure.y)}};
  if (has_panels(figure)) {
    json["value"] = axis_json(figure.value);
    json["panel_words"] = figure.panel_words;
    json["panels"] = Json::array();
    for (const Panel& panel : figure.panels) {
      const Json values = mapped(panel.values, numbers_json);
      json["panels"].push_back({{"name", panel.name}, {"values", values}});
    }
    return json;
  }
  json["order_words"] = figure.order_words;
  json["series"] = Json::array();
  for (const Series& series : figure.series) {
    json["series"].push_back(series_json(series));
  }
  json["marks"] = Json::array();
  for (const Mark& mark : figure.marks) {
    json["marks"].push_back({{"name", mark.name}, {"value", number_json(mark.value)}});
  }
  return json;
}

void check_figure(const Figure& figure) {
  PARE_CHECK(!figure.title.empty(), "a figure without title");
  if (!has_panels(figure)) {
    PARE_CHECK(figure.panels.empty() && !figure.series.empty(), figure.title + ": no series");
    PARE_CHECK(figure.kind != FigureKind::lines || figure.x.names.empty(), figure.title + ": a line between names");
    PARE_CHECK(figure.kind != FigureKind::bars || !figure.x.names.empty(), figure.title + ": bars without names");
    for (const Series& series : figure.series) {
      check_series(figure, series);
    }
    return;
  }
  PARE_CHECK(figure.series.empty() && !figure.panels.empty(), figure.title + ": no panels");
  for (const Panel& panel : figure.panels) {
    PARE_CHECK(panel.values.size() == figure.y.names.size(), figure.title + ": rows and their names differ");
    for (const std::vector<double>& row : panel.values) {
      PARE_CHECK(row.size() == figure.x.names.size(), figure.title + ": columns and their names differ");
    }
  }
}

FigureTable table_of(const Figure& figure) {
  if (has_panels(figure)) {
    return panels_table(figure);
  }
  return figure.kind != FigureKind::scatter && share_places(figure.series) ? side_by_side(figure)
                                                                           : one_below_the_other(figure);
}

}  // namespace pare
