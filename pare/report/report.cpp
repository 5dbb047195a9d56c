#include "pare/report/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/report/assets.h"
#include "pare/report/figure.h"
#include "pare/report/html.h"
#include "pare/support/error.h"

namespace pare {

namespace {

const char* tone_class(Tone tone) {
  switch (tone) {
    case Tone::good:
      return "good";
    case Tone::fair:
      return "fair";
    case Tone::bad:
      return "bad";
    case Tone::neutral:
      return "neutral";
  }
  PARE_UNREACHABLE("no such tone");
}

std::string paragraph(const std::string& text, const char* css_class) {
  return text.empty() ? "" : fmt::format("<p class=\"{}\">{}</p>\n", css_class, html_text(text));
}

// Only our own script runs, and nothing is fetched: what escaping might miss, the browser still refuses. The charting
// library is unpacked into a blob; it writes styles into the page.
std::string head_html(const Report& report, const ReportAssets& assets) {
  return fmt::format(R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'sha256-{}' blob:; )"
                     R"(style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="pare {}">
<title>{}</title>
<style>
{}</style>
</head>
)",
                     assets.script_hash, PARE_VERSION, html_text(report.title), assets.style);
}

std::string facts_html(const std::vector<Fact>& facts) {
  std::string html;
  for (const Fact& fact : facts) {
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", html_text(fact.name), html_text(fact.value));
  }
  return fmt::format("<dl class=\"facts\">\n{}</dl>\n", html);
}

std::string top_html(const Report& report) {
  std::string html = fmt::format(
      "<header>\n<div class=\"bar\"><span class=\"brand\">pare</span>"
      "<button type=\"button\" id=\"theme\" hidden>Colours: auto</button></div>\n<h1>{}</h1>\n",
      html_text(report.title));
  html += paragraph(report.summary, "summary") + facts_html(report.measured);
  if (!report.fingerprint.empty()) {
    html += fmt::format("<details class=\"files\"><summary>SHA-256 of every file</summary>\n{}</details>\n",
                        facts_html(report.fingerprint));
  }
  if (!report.partial.empty()) {
    html +=
        fmt::format("<p class=\"notice\" role=\"alert\"><strong>Partial.</strong> {}</p>\n", html_text(report.partial));
  }
  return html + "</header>\n";
}

std::string verdicts_html(const std::vector<ReportVerdict>& verdicts) {
  if (verdicts.empty()) {
    return "";
  }
  std::string html;
  for (const ReportVerdict& verdict : verdicts) {
    html += fmt::format(
        "<article class=\"verdict {}\"><h3>{}</h3><p class=\"word\">{}</p><p class=\"number\">{}</p>{}</article>\n",
        tone_class(verdict.tone), html_text(verdict.name), html_text(verdict.word), html_text(verdict.number),
        paragraph(verdict.words, "meaning"));
  }
  return fmt::format(
      "<section id=\"verdicts\" aria-label=\"Verdicts\">\n<div class=\"verdicts\">\n{}</div>\n</section>\n", html);
}

std::string contents_html(const std::vector<ReportSection>& sections) {
  if (sections.size() < 2) {
    return "";
  }
  std::string html;
  for (size_t i = 0; i < sections.size(); ++i) {
    html += fmt::format("<a href=\"#section-{}\">{}</a>\n", i + 1, html_text(sections[i].title));
  }
  return fmt::format("<nav aria-label=\"Sections\">\n{}</nav>\n", html);
}

std::string figure_html(const Figure& figure, size_t number, bool plots) {
  check_figure(figure);
  const FigureTable table = table_of(figure);
  std::string plot;
  if (const std::optional<std::string> constant = constant_text(figure)) {
    plot = paragraph(*constant, "constant");
  } else if (plots) {
    plot = fmt::format("<div class=\"plot\" role=\"img\" aria-label=\"{}\"></div>\n", html_text(figure.title));
  }
  return fmt::format(R"(<figure id="figure-{}" class="{}">
<figcaption><h3>{}</h3>{}</figcaption>
{}<details{}><summary>The numbers: {} {}</summary>
<div class="tools"><button type="button" class="copy" hidden>Copy JSON</button><button type="button" class="save" hidden>Save JSON</button></div>
<div class="scroll">
{}</div></details>
<script type="application/json">{}</script>
</figure>
)",
                     number, word(figure.kind), html_text(figure.title), paragraph(figure.words, "words"), plot,
                     plots ? "" : " open", table.rows, table.rows == 1 ? "row" : "rows", table.html,
                     script_json(to_json(figure)));
}

std::string table_html(const ReportTable& table) {
  std::string head, rows;
  for (const std::string& column : table.columns) {
    head += fmt::format("<th>{}</th>", html_text(column));
  }
  for (const std::vector<std::string>& row : table.rows) {
    PARE_CHECK(row.size() == table.columns.size(), table.title + ": a row of another length");
    std::string cells;
    for (size_t i = 0; i < row.size(); ++i) {
      // On a narrow page rows become cards, and each cell says what it is.
      cells += fmt::format("<td data-column=\"{}\">{}</td>", html_text(table.columns[i]), html_text(row[i]));
    }
    rows += fmt::format("<tr>{}</tr>\n", cells);
  }
  return fmt::format(
      "<div class=\"table\">{}<table class=\"words\"><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table></div>\n",
      table.title.empty() ? "" : fmt::format("<h3>{}</h3>", html_text(table.title)), head, rows);
}

std::string sections_html(const std::vector<ReportSection>& sections, bool plots) {
  std::string html;
  size_t figures = 0;
  for (size_t i = 0; i < sections.size(); ++i) {
    const ReportSection& section = sections[i];
    html += fmt::format("<section id=\"section-{}\">\n<h2>{}</h2>\n{}", i + 1, html_text(section.title),
                        paragraph(section.words, "words"));
    html += section.command.empty() ? "" : fmt::format("<pre class=\"command\">{}</pre>\n", html_text(section.command));
    // What is a sentence would be a card with a hole beside a plot: such figures stand below the others.
    for (const bool constant : {false, true}) {
      std::string cards;
      for (const Figure& figure : section.figures) {
        cards += constant_text(figure).has_value() == constant ? figure_html(figure, ++figures, plots) : "";
      }
      html += cards.empty() ? "" : fmt::format("<div class=\"figures\">\n{}</div>\n", cards);
    }
    for (const ReportTable& table : section.tables) {
      html += table_html(table);
    }
    html += "</section>\n";
  }
  return html;
}

}  // namespace

bool reports_have_plots() {
  return !report_assets().plotly.empty();
}

std::string to_html(const Report& report) {
  const ReportAssets& assets = report_assets();
  const bool plots = reports_have_plots();
  std::string html = head_html(report, assets) + "<body>\n" + top_html(report) + "<main>\n";
  html += verdicts_html(report.verdicts) + contents_html(report.sections);
  html += fmt::format("<p class=\"notice\" id=\"no-plots\"{}>{}</p>\n", plots ? " hidden" : "",
                      "Plots were left out: pare was built without plotly. Every figure's numbers are below it.");
  html += sections_html(report.sections, plots) + "</main>\n";
  html += fmt::format("<footer>Written by pare {}. {}</footer>\n", PARE_VERSION,
                      plots ? fmt::format("Plots by {}.", html_text(assets.plotly_notice)) : "");
  if (plots) {
    html += "<script type=\"text/plain\" id=\"plotly\">";
    for (const std::string_view piece : assets.plotly) {
      html += piece;
    }
    html += "</script>\n";
  }
  html += fmt::format("<script>{}</script>\n</body>\n</html>\n", assets.script);
  return html;
}

}  // namespace pare
