// Our side of tests/report/page.py: a page with every kind of figure, gaps, and names that try to be more than names.

#include <cmath>
#include <filesystem>
#include <limits>

#include "pare/report/report.h"
#include "pare/support/files.h"

namespace {

using namespace pare;

constexpr double gap = std::numeric_limits<double>::quiet_NaN();
const std::string hostile =
    "</script><script>window.hacked=1</script><img src=x onerror=\"window.hacked=2\"><a "
    "href=\"javascript:window.hacked=3\">"
    "x</a><b>bold</b>\xFF\xE2\x80\xAE %{x} ${y}";

// Short enough to be a label whole.
const std::string short_hostile = "<b>x</b><a href='javascript:0'>y</a> %{y}";

std::vector<double> counted(int n) {
  std::vector<double> list;
  for (int i = 0; i < n; ++i) {
    list.push_back(i);
  }
  return list;
}

std::vector<std::string> names(const std::string& word, int n) {
  std::vector<std::string> list;
  for (int i = 0; i < n; ++i) {
    list.push_back(word + std::to_string(i));
  }
  return list;
}

Figure lines() {
  Figure figure{.title = "Effective rank of the stream, by layer",
                .words = "Mean over sentences; the band is one standard deviation.",
                .x = {.words = "layer"},
                .y = {.words = "effective rank", .unit = "directions"}};
  for (int s = 0; s < 3; ++s) {
    Series series{.name = s == 2 ? hostile : s == 1 ? short_hostile : "after attention", .x = counted(13)};
    for (int i = 0; i < 13; ++i) {
      series.y.push_back(s == 1 && i == 5 ? gap : 40 - 2.0 * i + 3 * s);
      series.spread.push_back(1 + 0.2 * i);
    }
    figure.series.push_back(series);
  }
  figure.marks = {{"the width's bound " + hostile, 44}};
  return figure;
}

Figure spectra() {
  Figure figure{.title = "Spectrum of the stream after each layer",
                .words = "Singular values over the largest.",
                .x = {.words = "number of the singular value"},
                .y = {.words = "singular value over the largest", .log = true},
                .order_words = "layer"};
  for (int layer = 0; layer < 9; ++layer) {
    Series series{.name = "layer " + std::to_string(layer), .x = counted(64), .order = layer};
    for (int i = 0; i < 64; ++i) {
      series.y.push_back(i == 63 ? 0 : std::exp(-0.02 * (layer + 1) * i));
    }
    figure.series.push_back(series);
  }
  return figure;
}

Figure bars() {
  return {.kind = FigureKind::bars,
          .title = "Parameters that each pass removes",
          .x = {.words = "pass", .names = {"eliminate_projection", hostile, "fold_norm_gain"}},
          .y = {.words = "parameters removed", .log = false},
          .series = {{.name = "alone", .x = {0, 1, 2}, .y = {33554432, 12, gap}},
                     {.name = "together", .x = {0, 1, 2}, .y = {16777216, 0, 4096}}}};
}

Figure scatter() {
  return {.kind = FigureKind::scatter,
          .title = "Asymmetry against rank, one point for each head",
          .x = {.words = "asymmetry"},
          .y = {.words = "output dimension"},
          .series = {
              {.name = "heads", .x = {0.1, 0.4, 0.9}, .y = {3, gap, 12}, .labels = {"layer 0, head 1", hostile, "c"}}}};
}

Figure map(FigureKind kind, int panels, const std::string& corner) {
  Figure figure{
      .kind = kind,
      .title = kind == FigureKind::matrix ? "Smallest principal angle between heads" : "Attention entropy of each head",
      .x = {.words = "head", .names = names("", 12)},
      .y = {.words = kind == FigureKind::matrix ? "head" : "layer", .names = names("", 12)},
      .value = {.words = "angle", .unit = "degrees"},
      .panel_words = "layer"};
  figure.x.names.back() = corner;
  for (int p = 0; p < panels; ++p) {
    Panel panel{.name = panels > 1 ? std::to_string(p) : ""};
    for (int row = 0; row < 12; ++row) {
      panel.values.push_back({});
      for (int column = 0; column < 12; ++column) {
        panel.values.back().push_back(row == column ? gap : 90.0 / (1 + std::abs(row - column) + p));
      }
    }
    figure.panels.push_back(panel);
  }
  return figure;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    return 1;
  }
  Report report{.title = "Probe of " + hostile,
                .summary = "Every kind of figure.",
                .partial = "Interrupted after 12 of 128 sentences. " + hostile,
                .measured = {{"command", "pare probe '" + hostile + "'"}, {"measured", "2026-01-01 00:00 UTC"}},
                .fingerprint = {{"model.safetensors " + hostile, std::string(64, 'a')}}};
  report.verdicts = {{"Rank collapse", "none", "effective rank 31.2 of 48", "What that means.", Tone::good},
                     {"Entropy collapse", "partial", "3 of 144 heads", hostile, Tone::fair},
                     {"Head channel", "collapsed", "0.99", "", Tone::bad},
                     {hostile, "structural", "2d - r = 700", "", Tone::neutral}};
  report.sections = {
      {"Ranks " + hostile, "What the stream spans.", {lines(), spectra()}, {}},
      {"Heads", "", {map(FigureKind::heat_map, 1, hostile), map(FigureKind::matrix, 6, "11"), scatter()}, {}},
      {"What can go", "", {bars()}, {{"Refusals", {"pass", "why"}, {{"a", hostile}, {"b", std::string(300, 'x')}}}}}};
  write_text_file(arguments[1], to_html(report));
}
