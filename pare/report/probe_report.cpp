#include "pare/report/pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "pare/probes/collapses.h"
#include "pare/probes/probe_results.h"
#include "pare/report/html.h"
#include "pare/report/probe_sections.h"
#include "pare/support/error.h"
#include "pare/support/numbers.h"

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

// What it is, and the words of the number that decides it.
const char* explanation_of(Collapse collapse) {
  switch (collapse) {
    case Collapse::rank_in_depth:
      return "Do all tokens of a sequence become one vector, or one direction, as they pass through the layers? The "
             "effective rank is the number of directions that they use.";
    case Collapse::rank_in_width:
      return "Do attention matrices come near rank one, so that all queries attend to the same tokens? σ1 and σ2 are "
             "the two largest singular values.";
    case Collapse::head_channel:
      return "Can the output of one head be recovered from what attention adds to the residual stream? That is a sum: "
             "of H heads of width k, the others contribute (H−1)k unknowns per token.";
    case Collapse::entropy:
      return "Do heads attend to a single token? The relative entropy is 0 for one token, and 1 where all tokens get "
             "the same attention.";
  }
  PARE_UNREACHABLE("no such collapse");
}

ReportVerdict verdict_of(const CollapseFinding& finding) {
  ReportVerdict verdict{.name = title_of(finding.collapse), .word = word(finding.verdict)};
  verdict.tone = finding.verdict == CollapseVerdict::none        ? Tone::good
                 : finding.verdict == CollapseVerdict::partial   ? Tone::fair
                 : finding.verdict == CollapseVerdict::collapsed ? Tone::bad
                                                                 : Tone::neutral;
  verdict.number = finding.measure + ": " + (finding.number ? fmt::format("{:.3g}", *finding.number) : "not defined");
  verdict.words =
      fmt::format("{}{}\nRule – {}.{}", explanation_of(finding.collapse),
                  finding.place.empty() ? "" : fmt::format("\nWorst at {}.", finding.place), finding.rule,
                  finding.undecided.empty() ? "" : fmt::format("\nNothing is decided: {}.", finding.undecided));
  return verdict;
}

}  // namespace

Report probe_report(const std::string& name, const ProbeResults& results, const nlohmann::ordered_json& described,
                    const std::string& inputs, const ReportOrigin& origin) {
  Report report{.title = fmt::format("Is “{}” collapsing?", title_of_path(name)),
                .summary =
                    "Rank, norms and attention heads, measured on data: which of four known kinds of collapse "
                    "occur, and where.",
                .measured = facts_of(origin),
                .fingerprint = hashes_of(described)};
  const std::string lengths = results.shortest == results.longest
                                  ? std::to_string(results.longest)
                                  : fmt::format("{} to {}", results.shortest, results.longest);
  report.measured.push_back(
      {"inputs", fmt::format("{}, {} {} of {} tokens, {} in all", inputs, with_commas(results.sequences),
                             results.sequences == 1 ? "sequence" : "sequences", lengths, with_commas(results.tokens))});
  report.measured.push_back({"computed in", fmt::format("{}; rank counts singular values above {:g} of the largest",
                                                        results.dtype, results.threshold)});
  if (!results.interventions.empty()) {
    report.measured.push_back({"model changed by", fmt::format("{}", fmt::join(results.interventions, "; "))});
    if (const std::optional<double> effect = results.effect.average()) {
      report.measured.push_back({"which changed the last layer's output by", number_text(*effect)});
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
    ReportTable table{"", {"warning"}, {}};
    for (const std::string& warning : results.warnings) {
      table.rows.push_back({warning});
    }
    report.sections.push_back({.title = "Warnings", .tables = {table}});
  }
  return report;
}

}  // namespace pare
