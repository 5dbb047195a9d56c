// What the HTML report makes of text that is not to be trusted, and of numbers that do not fit.

#include "pare/report/report.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "pare/report/figure.h"
#include "pare/report/html.h"
#include "pare/report/origin.h"
#include "pare/report/svg.h"
#include "pare/support/error.h"

using namespace pare;

namespace {

size_t count_of(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    ++count;
  }
  return count;
}

Figure small_figure() {
  return {.title = "t",
          .x = {.words = "layer"},
          .y = {.words = "rank"},
          .series = {{.name = "s", .x = {0, 1}, .y = {2, 3}}}};
}

}  // namespace

TEST_CASE("html_text leaves no way out of text and attributes") {
  CHECK(html_text("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(html_text("Größe σ₁ 👩‍🔬") == "Größe σ₁ 👩‍🔬");
  CHECK(html_text("a\nb\tc") == "a\nb\tc");
  CHECK(html_text("") == "");
  const std::string r = "\xEF\xBF\xBD";
  CHECK(html_text(std::string("a\0b\x1b[1m\x7f", 8)) == "a" + r + "b" + r + "[1m" + r);
  CHECK(html_text("\xC2\x85|\xE2\x80\xAE|\xE2\x81\xA6|\xE2\x80\x8F") == r + "|" + r + "|" + r + "|" + r);
}

TEST_CASE("html_text replaces what is not UTF-8, byte by byte") {
  const std::string r = "\xEF\xBF\xBD";
  for (const std::string& broken :
       {std::string("\xFF"), std::string("\x80"), std::string("\xC3"), std::string("\xC0"), std::string("\xF8")}) {
    CHECK(html_text(broken) == r);
    CHECK(html_text(broken + "<") == r + "&lt;");  // what follows is still looked at
  }
  CHECK(html_text("\xC0\xBC") == r + r);                  // an overlong <
  CHECK(html_text("\xE0\x80\xBC") == r + r + r);          // and a longer one
  CHECK(html_text("\xED\xA0\x80") == r + r + r);          // half a surrogate pair
  CHECK(html_text("\xF4\x90\x80\x80") == r + r + r + r);  // beyond Unicode
  CHECK(html_text("\xF0\x9F\x91") == r + r + r);          // cut short
  CHECK(html_text("\xF0\x9F\x91\xA9") == "\xF0\x9F\x91\xA9");
}

TEST_CASE("script_json cannot end its element, and says the same") {
  const nlohmann::ordered_json json = {{"name", "</script><!-- & \xE2\x80\xA8 \"q\""}, {"x", {1, nullptr}}};
  const std::string text = script_json(json);
  CHECK(text.find_first_of("<>&") == std::string::npos);
  CHECK(nlohmann::ordered_json::parse(text) == json);
  CHECK(nlohmann::json::parse(script_json({{"broken", "\xFF"}}))["broken"] == "\xEF\xBF\xBD");
}

TEST_CASE("numbers that are none are null in JSON and a dash in tables") {
  Figure figure = small_figure();
  figure.series[0].y = {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()};
  figure.series[0].spread = {0.125, std::numeric_limits<double>::quiet_NaN()};
  const nlohmann::ordered_json json = to_json(figure);
  CHECK(json["series"][0]["y"] == nlohmann::ordered_json::array({nullptr, nullptr}));
  CHECK(json["series"][0]["spread"] == nlohmann::ordered_json::array({0.125, nullptr}));
  const std::string html = table_of(figure).html;
  CHECK(count_of(html, "<td>–</td>") == 3);
  CHECK(html.find("nan") == std::string::npos);
  CHECK(number_text(1e300) == "1e+300");
  CHECK(number_text(33554432) == "33554432");
  CHECK(number_text(0.123456) == "0.1235");
}

TEST_CASE("a page has every verdict, figure, table and number, and escapes each name") {
  const std::string name = "<i>\"&";
  Figure figure = small_figure();
  figure.title = figure.words = figure.series[0].name = figure.x.words = figure.y.words = figure.y.unit = name;
  figure.marks = {{name, 1}};
  Figure map{.kind = FigureKind::heat_map,
             .title = name,
             .x = {.words = name, .names = {name}},
             .y = {.words = name, .names = {name, name}},
             .value = {.words = name, .unit = name},
             .panels = {{name, {{0.5}, {0.25}}}},
             .panel_words = name};
  const Report report{
      .title = name,
      .summary = name,
      .partial = name,
      .measured = {{name, name}},
      .fingerprint = {{name, name}},
      .verdicts = {{name, name, name, name, Tone::bad}},
      .sections = {{name, name, {figure, map}, {{name, {name, name}, {{name, name}}}}}, {name, "", {}, {}}}};
  const std::string html = to_html(report);
  CHECK(html.find("<i>") == std::string::npos);
  CHECK(count_of(html, "<figure ") == 2);
  CHECK(count_of(html, "<script type=\"application/json\">") == 2);
  CHECK(count_of(html, "<article class=\"verdict bad\">") == 1);
  CHECK(html.find("<td>0.25</td>") != std::string::npos);
  CHECK(count_of(html, "http") == count_of(html, "http-equiv"));  // nothing to fetch
  const size_t hash = html.find("script-src 'sha256-");
  CHECK(hash != std::string::npos);
  CHECK(count_of(html, "<div class=\"plot\"") == (reports_have_plots() ? 2 : 0));
  CHECK((html.find("id=\"no-plots\" hidden") != std::string::npos) == reports_have_plots());
}

TEST_CASE("numbers of a figure that do not fit each other are a bug of the caller") {
  const auto refused = [](auto change) {
    Figure figure = small_figure();
    change(figure);
    CHECK_THROWS_AS(check_figure(figure), InternalError);
  };
  CHECK_NOTHROW(check_figure(small_figure()));
  refused([](Figure& f) { f.series[0].y.pop_back(); });
  refused([](Figure& f) { f.series[0].spread = {1}; });
  refused([](Figure& f) { f.series[0].labels = {"a"}; });
  refused([](Figure& f) { f.series.clear(); });
  refused([](Figure& f) { f.title.clear(); });
  refused([](Figure& f) { f.x.names = {"only one"}; });
  refused([](Figure& f) { f.kind = FigureKind::bars; });  // bars stand at names
  refused([](Figure& f) { f.kind = FigureKind::heat_map; });
  refused([](Figure& f) {
    f.x.names = {"a norm", "another"};
  });  // a line would say that there is something between them
  Figure map{.kind = FigureKind::heat_map,
             .title = "t",
             .x = {.names = {"a"}},
             .y = {.names = {"b"}},
             .panels = {{"", {{1}}}}};
  CHECK_NOTHROW(check_figure(map));
  map.panels[0].values[0].push_back(2);
  CHECK_THROWS_AS(check_figure(map), InternalError);
}

TEST_CASE("a figure whose numbers are all the same is a sentence") {
  const double gap = std::numeric_limits<double>::quiet_NaN();
  Figure figure = small_figure();
  CHECK_FALSE(constant_text(figure));
  figure.series[0].y = {8, 8};
  figure.y.unit = "nats";
  CHECK(constant_text(figure) == "The same everywhere: rank = 8 nats (2 numbers).");
  figure.marks = {{"most", 64}};
  CHECK(constant_text(figure) == "The same everywhere: rank = 8 nats (2 numbers); most: 64.");
  figure.series[0].y = {8, gap};
  CHECK(constant_text(figure) == "The same wherever it is defined: rank = 8 nats (1 of 2 numbers); most: 64.");
  figure.series[0].y = {gap, gap};
  CHECK_FALSE(constant_text(figure));  // which the page says in other words
  figure.series[0].y = {8, 8};
  figure.series[0].spread = {0, 0.5};
  CHECK_FALSE(constant_text(figure));  // the mean is constant, what it is of is not
  Figure map{.kind = FigureKind::heat_map,
             .title = "<t>",
             .x = {.names = {"a", "b"}},
             .y = {.names = {"c"}},
             .value = {.words = "<i>", .log = true},
             .panels = {{"", {{8, 8}}}}};
  CHECK(constant_text(map) == "The same everywhere: <i> = 8 (2 numbers).");
  const std::string html = to_html({.title = "t", .sections = {{"s", "", {map, small_figure()}, {}}}});
  CHECK(html.find("<p class=\"constant\">The same everywhere: &lt;i&gt; = 8 (2 numbers).</p>") != std::string::npos);
  CHECK(count_of(html, "<div class=\"plot\"") == (reports_have_plots() ? 1 : 0));
  CHECK(count_of(html, "<td>8</td>") == 2);  // its table is there
  CHECK(html.find("<figure id=\"figure-1\" class=\"lines\">") !=
        std::string::npos);  // and it stands below what is drawn
  const Figure bar{.kind = FigureKind::bars,
                   .title = "t",
                   .x = {.names = {"fold_norm_gain"}},
                   .y = {.words = "parameters removed"},
                   .series = {{.name = "alone", .x = {0}, .y = {640}}}};
  CHECK(constant_text(bar) == "One number: parameters removed = 640 (fold_norm_gain).");
}

TEST_CASE("an axis says what its quantity cannot be, and only then") {
  Figure figure = small_figure();
  CHECK_FALSE(to_json(figure)["y"].contains("least"));
  figure.y.least = 0;
  figure.y.most = 64;
  CHECK(to_json(figure)["y"]["least"] == 0);
  CHECK(to_json(figure)["y"]["most"] == 64);
}

TEST_CASE("a title has as much of a path as says which model it is") {
  CHECK(title_of_path("gpt2") == "gpt2");
  CHECK(title_of_path("gpt2", 2) == "gpt2");  // a preset lies nowhere
  CHECK(title_of_path("a/models/story/") == "story");
  CHECK(title_of_path("/a/runs/base/smaller", 2) == "base/smaller");
  CHECK(title_of_path("/a/runs/base/checkpoints/400") == "base/checkpoints/400");
  CHECK(title_of_path("/a/runs/base/checkpoints/400", 2) == "base/checkpoints/400");
  CHECK(title_of_path("/") == "/");
  const std::filesystem::path here = std::filesystem::current_path();
  CHECK(title_of_path(".", 2) == (here.parent_path().filename() / here.filename()).string());
}

TEST_CASE("a section's command is text, and for a shell") {
  const std::string html =
      to_html({.title = "t", .sections = {{.title = "s", .command = "pare train 'data.train=[\"<T>\"]'"}}});
  CHECK(html.find("<pre class=\"command\">pare train &#39;data.train=[&quot;&lt;T&gt;&quot;]&#39;</pre>") !=
        std::string::npos);
}

TEST_CASE("series without common places are listed point by point") {
  Figure figure = small_figure();
  figure.series.push_back({.name = "other", .x = {5}, .y = {7}});
  const FigureTable table = table_of(figure);
  CHECK(table.rows == 3);
  CHECK(table.html.find("<th>other</th><td>5</td><td>7</td>") != std::string::npos);
  CHECK(table_of(small_figure()).rows == 2);
}

TEST_CASE("a still picture has its points where its axes say, gaps, and no markup of a name") {
  const double gap = std::numeric_limits<double>::quiet_NaN();
  Figure figure{.kind = FigureKind::lines,
                .title = "a < b",
                .x = {.words = "step"},
                .y = {.words = "loss", .unit = "nats"},
                .series = {{.name = "<script>", .x = {0, 5, 10, 20}, .y = {0, 1, gap, 2}}}};
  const std::string svg = to_svg(figure);
  // From 70 to 540 with a twentieth of room on each side: 0 is at 70 + 470 / 22, 5 at 70 + 470 * 6 / 22.
  CHECK(svg.find("d=\"M91.4 345.5 L198.2 200.0 M518.6 54.5\"") != std::string::npos);
  CHECK(svg.find("<title>a &lt; b</title>") != std::string::npos);
  CHECK(svg.find("loss (nats)") != std::string::npos);
  CHECK(svg.find("<script>") == std::string::npos);
  CHECK(svg == to_svg(figure));
  figure.kind = FigureKind::scatter;
  figure.x.log = true;
  figure.series[0].x = {0, 1, 10, 100};  // no point at the logarithm of 0, nor at a gap
  const std::string dots = to_svg(figure);
  size_t circles = 0;
  for (size_t at = dots.find("<circle"); at != std::string::npos; at = dots.find("<circle", at + 1)) {
    ++circles;
  }
  CHECK(circles == 2);
  CHECK(dots.find(">50</text>") != std::string::npos);
  figure.series[0] = {.name = "one", .x = {3}, .y = {3}};
  CHECK(to_svg(figure).find("nan") == std::string::npos);
  // Three points in one place: their names stand above and below it, and to its left.
  figure.series[0] = {.name = "one", .x = {3, 3, 3}, .y = {3, 3, 3}, .labels = {"first", "second", "third"}};
  const std::string named = to_svg(figure);
  CHECK(named.find("<text x=\"311.0\" y=\"195.0\" font-size=\"10\">first<") != std::string::npos);
  CHECK(named.find("<text x=\"311.0\" y=\"212.0\" font-size=\"10\">second<") != std::string::npos);
  CHECK(named.find("<text x=\"271.5\" y=\"195.0\" font-size=\"10\">third<") != std::string::npos);
  figure.kind = FigureKind::bars;
  figure.x.names = {"a", "b", "c", "d"};
  CHECK_THROWS_AS(to_svg(figure), InternalError);
}
