#include "pare/report/probe_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "pare/report/html.h"
#include "pare/report/probe_sections.h"
#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace {

const char* title_of(Collapse collapse) {
  switch (collapse) {
    case Collapse::rank_in_depth:
      return "Rank collapse in depth";
    case Collapse::rank_in_width:
      return "Rank collapse in width";
    case Collapse::head_channel:
      return "Head-channel collapse";
    case Collapse::entropy:
      return "Entropy collapse";
  }
  PARE_UNREACHABLE("no such collapse");
}

// What a reader wants to know of it.
const char* question_of(Collapse collapse) {
  switch (collapse) {
    case Collapse::rank_in_depth:
      return "Do tokens become the same as they go through layers?";
    case Collapse::rank_in_width:
      return "Does attention come near rank one as the context grows?";
    case Collapse::head_channel:
      return "Can a head's part be told from the sum of all?";
    case Collapse::entropy:
      return "Do heads look at one token only?";
  }
  PARE_UNREACHABLE("no such collapse");
}

ReportVerdict verdict_of(const CollapseFinding& finding) {
  ReportVerdict verdict{.name = title_of(finding.collapse)};
  switch (finding.verdict) {
    case CollapseVerdict::none:
      verdict.word = "none";
      verdict.tone = Tone::good;
      break;
    case CollapseVerdict::partial:
      verdict.word = "partial";
      verdict.tone = Tone::fair;
      break;
    case CollapseVerdict::collapsed:
      verdict.word = "collapsed";
      verdict.tone = Tone::bad;
      break;
    case CollapseVerdict::structural:
      verdict.word = "structural";
      break;
    case CollapseVerdict::undetermined:
      verdict.word = "undetermined";
      break;
  }
  verdict.number =
      finding.number ? fmt::format("{:.3g}: {}", *finding.number, finding.measure) : "no number: " + finding.measure;
  verdict.words =
      fmt::format("{} It is {}.{}{}", question_of(finding.collapse), finding.rule,
                  finding.place.empty() ? "" : fmt::format(" Worst at {}.", finding.place),
                  finding.undecided.empty() ? "" : fmt::format(" Nothing is decided: {}.", finding.undecided));
  return verdict;
}

}  // namespace

Report probe_report(const std::string& name, const ProbeResults& results, const nlohmann::ordered_json& described,
                    const std::string& inputs, const ReportOrigin& origin) {
  Report report{.title = fmt::format("Is “{}” collapsing?", name_of_path(name)),
                .summary = "Ranks, norms and heads on data: which of the four collapses there are, and where.",
                .measured = facts_of(origin),
                .fingerprint = hashes_of(described)};
  const std::string lengths = results.shortest == results.longest
                                  ? std::to_string(results.longest)
                                  : fmt::format("{} to {}", results.shortest, results.longest);
  report.measured.push_back(
      {"inputs", fmt::format("{}, {} {} of {} tokens, {} in all", inputs, with_commas(results.sequences),
                             results.sequences == 1 ? "sequence" : "sequences", lengths, with_commas(results.tokens))});
  report.measured.push_back(
      {"computed in", fmt::format("{}, rank above {:g} of the largest", results.dtype, results.threshold)});
  if (!results.interventions.empty()) {
    report.measured.push_back({"changed on purpose", fmt::format("{}", fmt::join(results.interventions, "; "))});
    if (const std::optional<double> effect = results.effect.average()) {
      report.measured.push_back({"which changed what the last layer leaves by", number_text(*effect)});
    }
  }
  if (results.partial) {
    report.partial = fmt::format("Interrupted: the first {} of {} sequences were measured.",
                                 with_commas(results.sequences), with_commas(results.asked_sequences));
  }
  for (const CollapseFinding& finding : results.findings) {
    report.verdicts.push_back(verdict_of(finding));
  }
  if (results.sequences == 0) {  // interrupted before anything was measured
    return report;
  }
  for (const ReportSection& section :
       {rank_section(results), entropy_section(results), heads_section(results), angles_section(results),
        spectra_section(results), width_section(results), norms_section(results)}) {
    if (!section.figures.empty() || !section.tables.empty()) {
      report.sections.push_back(section);
    }
  }
  if (!results.warnings.empty()) {
    ReportTable table{"", {"noticed while measuring"}, {}};
    for (const std::string& warning : results.warnings) {
      table.rows.push_back({warning});
    }
    report.sections.push_back({.title = "Warnings", .tables = {table}});
  }
  return report;
}

}  // namespace pare
