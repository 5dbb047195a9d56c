#include "pare/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "pare/report/figure.h"
#include "pare/report/html.h"
#include "pare/support/error.h"
#include "pare/support/table.h"

namespace pare {

namespace {

// Colours that people tell apart who see few (Okabe and Ito), dark enough on white.
constexpr std::array<const char*, 8> colours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                "#e69f00", "#56b4e9", "#000000", "#8c6d1f"};
constexpr double width = 760, plot_left = 70, plot_right = 540, plot_top = 40, plot_bottom = 360, line_height = 16;
constexpr size_t longest_name = 28, most_named = 16;  // points of a series

std::string coordinate(double value) {
  return fmt::format("{:.1f}", value);
}

std::string text_at(double x, double y, const std::string& text, const std::string& more = "") {
  return fmt::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", coordinate(x), coordinate(y), more, html_text(text));
}

std::string line_between(double x1, double y1, double x2, double y2, const std::string& more) {
  return fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", coordinate(x1), coordinate(y1),
                     coordinate(x2), coordinate(y2), more);
}

std::string cut(const std::string& name) {
  return name.size() <= longest_name ? name : name.substr(0, longest_name - 3) + "...";
}

// From values to places along an axis.
class Scale {
 public:
  Scale(bool log, double from, double to) : log_(log), from_(from), to_(to) {}

  void include(double value) {
    if (is_drawn(value)) {
      least_ = std::min(least_, inner(value));
      most_ = std::max(most_, inner(value));
    }
  }
  void close() {  // with some room, and never of no length
    if (!(least_ <= most_)) {
      least_ = 0;
      most_ = 1;
    }
    const double room = most_ > least_ ? 0.05 * (most_ - least_) : std::max(0.5 * std::abs(least_), 1e-9);
    least_ -= room;
    most_ += room;
  }
  bool is_drawn(double value) const { return std::isfinite(value) && (!log_ || value > 0); }
  double at(double value) const { return from_ + (inner(value) - least_) / (most_ - least_) * (to_ - from_); }

  // Round numbers, about five of them; of logarithms 1, 2 and 5 times each power of ten, or the powers where these are
  // enough.
  std::vector<double> ticks() const { return log_ ? ticks_of_powers() : ticks_of_steps(); }

 private:
  std::vector<double> ticks_of_powers() const {
    std::vector<double> found;
    for (double power = std::floor(least_); power <= most_; ++power) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double tick = digit * std::pow(10.0, power);
        if ((digit == 1 || most_ - least_ < 3) && inner(tick) >= least_ && inner(tick) <= most_) {
          found.push_back(tick);
        }
      }
    }
    return found;
  }
  std::vector<double> ticks_of_steps() const {
    const double rough = (most_ - least_) / 5, power = std::pow(10.0, std::floor(std::log10(rough)));
    const double step = rough / power < 1.5 ? power : rough / power < 3.5 ? 2 * power : 5 * power;
    std::vector<double> found;
    for (double tick = std::ceil(least_ / step) * step; tick <= most_; tick += step) {
      found.push_back(std::abs(tick) < step / 2 ? 0 : tick);
    }
    return found;
  }
  double inner(double value) const { return log_ ? std::log10(value) : value; }
  bool log_;
  double from_, to_;
  double least_ = std::numeric_limits<double>::infinity(), most_ = -std::numeric_limits<double>::infinity();
};

std::string legend_of(const Figure& figure) {
  std::string text;
  double y = plot_top + 8;
  for (size_t i = 0; i < figure.series.size(); ++i) {
    const char* colour = colours[i % colours.size()];
    text += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{}\" stroke=\"{}\"/>\n",
                        coordinate(plot_right + 16), coordinate(y - 9), i < colours.size() ? colour : "none", colour);
    text += text_at(plot_right + 32, y, cut(figure.series[i].name));
    y += line_height;
  }
  return text;
}

// Colours come again, and then dashed or hollow.
std::string curve(const Series& series, const Scale& x, const Scale& y, size_t number) {
  std::string path;
  bool drawing = false;
  for (size_t i = 0; i < series.x.size(); ++i) {
    const bool is_point = x.is_drawn(series.x[i]) && y.is_drawn(series.y[i]);
    if (is_point) {
      const std::string place = coordinate(x.at(series.x[i])) + " " + coordinate(y.at(series.y[i]));
      path += (drawing ? " L" : " M") + place;
    }
    drawing = is_point;
  }
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"{}/>\n",
                     path.empty() ? "" : path.substr(1), colours[number % colours.size()],
                     number < colours.size() ? "" : " stroke-dasharray=\"6 3\"");
}

// Names of points, each where no other name stands if there is such a place: above or below its point, to its right or
// to its left.
class PointNames {
 public:
  std::string placed(double x, double y, const std::string& name) {
    const double length = letter_width * static_cast<double>(display_width(name));
    const std::array<Box, 4> places = {Box{x + 6, y - 5, length}, Box{x + 6, y + 12, length},
                                       Box{x - 6 - length, y - 5, length}, Box{x - 6 - length, y + 12, length}};
    const auto free = std::ranges::find_if(places, [this](const Box& place) { return is_free(place); });
    taken_.push_back(free == places.end() ? places.front() : *free);
    return text_at(taken_.back().left, taken_.back().base, name, " font-size=\"10\"");
  }

 private:
  static constexpr double letter_width = 5.5, letter_height = 10;
  struct Box {
    double left, base, length;
  };
  bool is_free(const Box& box) const {
    return box.left >= plot_left && box.left + box.length <= plot_right &&
           std::ranges::none_of(taken_, [&box](const Box& other) {
             return box.left < other.left + other.length && other.left < box.left + box.length &&
                    std::abs(box.base - other.base) < letter_height;
           });
  }
  std::vector<Box> taken_;
};

std::string points(const Series& series, const Scale& x, const Scale& y, size_t number, PointNames& names) {
  const char* colour = colours[number % colours.size()];
  std::string text;
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (x.is_drawn(series.x[i]) && y.is_drawn(series.y[i])) {
      text += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{}\" fill-opacity=\"0.7\" stroke=\"{}\"/>\n",
                          coordinate(x.at(series.x[i])), coordinate(y.at(series.y[i])),
                          number < colours.size() ? colour : "none", colour);
      const bool is_named = !series.labels.empty() && series.x.size() <= most_named && series.labels[i] != series.name;
      text += is_named ? names.placed(x.at(series.x[i]), y.at(series.y[i]), cut(series.labels[i])) : "";
    }
  }
  return text;
}

// Axes with their ticks and titles; then what is drawn between them.
std::string chart(const Figure& figure) {
  Scale x(figure.x.log, plot_left, plot_right), y(figure.y.log, plot_bottom, plot_top);
  for (const Series& series : figure.series) {
    std::for_each(series.x.begin(), series.x.end(), [&x](double value) { x.include(value); });
    std::for_each(series.y.begin(), series.y.end(), [&y](double value) { y.include(value); });
  }
  for (const Mark& mark : figure.marks) {
    y.include(mark.value);
  }
  x.close();
  y.close();
  std::string text;
  for (const double tick : x.ticks()) {
    text += line_between(x.at(tick), plot_top, x.at(tick), plot_bottom, "stroke=\"#e4e4e4\"");
    text += text_at(x.at(tick), plot_bottom + line_height, number_text(tick), " text-anchor=\"middle\"");
  }
  for (const double tick : y.ticks()) {
    text += line_between(plot_left, y.at(tick), plot_right, y.at(tick), "stroke=\"#e4e4e4\"");
    text += text_at(plot_left - 6, y.at(tick) + 4, number_text(tick), " text-anchor=\"end\"");
  }
  for (const Mark& mark : figure.marks) {
    text += line_between(plot_left, y.at(mark.value), plot_right, y.at(mark.value),
                         "stroke=\"#666\" stroke-dasharray=\"4 3\"");
  }
  text += line_between(plot_left, plot_bottom, plot_right, plot_bottom, "stroke=\"#222\"");
  text += line_between(plot_left, plot_top, plot_left, plot_bottom, "stroke=\"#222\"");
  const double middle = (plot_top + plot_bottom) / 2;
  text += text_at((plot_left + plot_right) / 2, plot_bottom + 2.4 * line_height, axis_title(figure.x),
                  " text-anchor=\"middle\"");
  text += text_at(16, middle, axis_title(figure.y),
                  fmt::format(" text-anchor=\"middle\" transform=\"rotate(-90 16 {})\"", coordinate(middle)));
  PointNames names;
  for (size_t i = 0; i < figure.series.size(); ++i) {
    text +=
        figure.kind == FigureKind::lines ? curve(figure.series[i], x, y, i) : points(figure.series[i], x, y, i, names);
  }
  return text;
}

}  // namespace

std::string to_svg(const Figure& figure) {
  check_figure(figure);
  PARE_CHECK(figure.kind == FigureKind::lines || figure.kind == FigureKind::scatter,
             figure.title + ": only lines and points are drawn as a still picture");
  const double names = plot_top + line_height * static_cast<double>(figure.series.size());
  const double height = std::max(plot_bottom + 3.2 * line_height, names + line_height);
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
             "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<title>{2}</title>\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             coordinate(width), coordinate(height), html_text(figure.title)) +
         text_at(plot_left, 22, figure.title, " font-size=\"14\"") + chart(figure) + legend_of(figure) + "</svg>\n";
}

}  // namespace pare
