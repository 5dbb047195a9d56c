#include "pare/report/audit_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/rewrite/reasons.h"
#include "pare/support/text.h"

namespace pare {

namespace {

Figure counts_figure(std::string title, std::string words, std::string of,
                     const std::vector<std::pair<std::string, int64_t>>& counts, int64_t whole) {
  Figure figure{.kind = FigureKind::bars,
                .title = std::move(title),
                .words = std::move(words),
                .x = {.words = std::move(of)},
                .y = {.words = "parameters"},
                .series = {{.name = "parameters"}}};
  for (const auto& [name, count] : counts) {
    figure.series[0].x.push_back(static_cast<double>(figure.x.names.size()));
    figure.series[0].y.push_back(static_cast<double>(count));
    figure.series[0].labels.push_back(share_text(count, whole) + " of the model");
    figure.x.names.push_back(name);
  }
  return figure;
}

ReportVerdict redundancy_verdict(const Audit& audit) {
  const Redundancy& counted = audit.redundancy.counted;
  ReportVerdict verdict{.name = "Redundant: the same function has a choice of",
                        .words =
                            "Counted symmetry by symmetry. A rotation or a gauge makes zeros inside dense "
                            "matrices, so a file loses less."};
  const std::string bound = counted.is_exact() ? "" : "at least ";
  verdict.word = bound + share_text(counted.total, audit.parameters);
  verdict.number = fmt::format("{}{} parameters", bound, with_commas(counted.total));
  verdict.tone = counted.is_exact() ? verdict.tone : Tone::fair;
  return verdict;
}

ReportVerdict proof_verdict(const TwinProof& proof) {
  ReportVerdict verdict{
      .name = "Is that count complete?",
      .word = proof.is_complete() ? "yes" : "no",
      .number = fmt::format("rank of a twin's Jacobian leaves {}, the rules count {}",
                            with_commas(proof.measured.redundant()), with_commas(proof.counted.total)),
      .words = fmt::format("A twin of width {} with {} parameters; gap {:.1e}.", proof.twin.width,
                           with_commas(proof.measured.parameters), proof.measured.gap),
      .tone = proof.is_complete() ? Tone::good : Tone::bad};
  if (!proof.measured.is_determined() || !proof.counted.is_exact()) {
    verdict.word = "undetermined";
    verdict.tone = Tone::fair;
  }
  return verdict;
}

std::vector<ReportVerdict> verdicts_of(const Audit& audit) {
  const int64_t saved = saved_together(audit.passes);
  const auto applies = [](const PassStep& step) { return step.proposal.applies; };
  const int64_t applying = std::count_if(audit.passes.alone.begin(), audit.passes.alone.end(), applies);
  std::vector<ReportVerdict> list = {
      {"Can go from a stored file, exactly", share_text(saved, audit.parameters),
       fmt::format("{} of {} parameters", with_commas(saved), with_commas(audit.parameters)),
       fmt::format("{}, by all passes that save, together.",
                   human_bytes(static_cast<uint64_t>(std::max<int64_t>(0, bytes_of(saved, audit.passes.dtype))))),
       saved > 0 ? Tone::good : Tone::neutral},
      redundancy_verdict(audit)};
  if (audit.redundancy.proof) {
    list.push_back(proof_verdict(*audit.redundancy.proof));
  }
  list.push_back({"Passes that apply", fmt::format("{} of {}", applying, audit.passes.alone.size()),
                  applying == std::ssize(audit.passes.alone) ? "none refuses" : "the others say why below", "",
                  Tone::neutral});
  return list;
}

ReportSection parts_section(const Audit& audit) {
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const PartRow& row : audit.parts) {
    counts.emplace_back(word(row.part), row.total);
  }
  std::sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return {.title = "Where the parameters are",
          .words = fmt::format("{} layers, {} distinct blocks; one more token adds {} numbers to the cache.",
                               audit.layers, audit.distinct_blocks, with_commas(audit.cache_elements)),
          .figures = {counts_figure("Parameters of each part", "", "part", counts, audit.parameters)}};
}

ReportSection redundancy_section(const RedundancyAudit& audit) {
  ReportSection section{.title = "What is redundant, by symmetry",
                        .words = "The dimension of the set of weights that are the same function, counted by rules."};
  if (!audit.counted.is_exact()) {
    ReportTable table{"Why this is a lower bound", {"the rules do not count all of"}, {}};
    for (const std::string& reason : audit.counted.lower_bound) {
      table.rows.push_back({reason});
    }
    section.tables.push_back(table);
  }
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const SymmetryCount& row : audit.counted.symmetries) {
    counts.emplace_back(row.symmetry, row.parameters);
  }
  if (!counts.empty()) {
    section.figures.push_back(counts_figure("Redundant parameters, by symmetry",
                                            "What the same function has a choice of: redundant is not removable.",
                                            "symmetry", counts, audit.parameters));
  }
  return section;
}

std::string reasons_text(const PassStep& step) {
  std::string text;
  for (const Reason& reason : reasons_against(step.proposal)) {
    if (!reason.remedy.empty()) {
      text += fmt::format("{}{}: {}; needs {}; what would help: {}", text.empty() ? "" : "\n", reason.where,
                          reason.found, reason.expected, reason.remedy);
    }
  }
  for (const std::string& note : step.proposal.notes) {
    text += fmt::format("{}{}", text.empty() ? "" : "\n", note);
  }
  return text;
}

ReportSection passes_section(const Audit& audit) {
  const PassAudit& passes = audit.passes;
  ReportSection section{.title = "What can go, pass by pass",
                        .words =
                            "Each pass on the model as it is. Passes overlap, so together they save less than "
                            "their sum; one that has nothing to remove here is not listed."};
  Figure figure{.kind = FigureKind::bars,
                .title = "Parameters that each pass removes",
                .words = "Net: a pass that adds tables or pivots is charged for them.",
                .x = {.words = "pass"},
                .y = {.words = "parameters removed"},
                .series = {{.name = "alone"}, {.name = "in what is chosen together"}}};
  ReportTable table{"Applied, noted and refused", {"pass", "", "parameters", "why, and what would help"}, {}};
  for (const PassStep& step : passes.alone) {
    const std::string id(step.call.pass->id), reasons = reasons_text(step);
    if (step.proposal.applies) {
      const double place = static_cast<double>(figure.x.names.size());
      figure.x.names.push_back(id);
      figure.series[0].x.push_back(place);
      figure.series[0].y.push_back(static_cast<double>(step.saved_parameters));
      figure.series[0].labels.push_back(share_text(step.saved_parameters, audit.parameters) + " of the model");
      double together = 0;
      for (const PassStep& chosen : passes.together.steps) {
        together += chosen.call.pass == step.call.pass ? static_cast<double>(chosen.saved_parameters) : 0;
      }
      figure.series[1].x.push_back(place);
      figure.series[1].y.push_back(together);
      figure.series[1].labels.push_back("of those that save most together");
    }
    if (step.proposal.applies || !reasons.empty()) {
      table.rows.push_back({id, step.proposal.applies ? "applies" : "refused",
                            step.proposal.applies ? with_commas(step.saved_parameters) : "", reasons});
    }
  }
  if (!figure.x.names.empty()) {
    section.figures.push_back(figure);
  }
  if (!table.rows.empty()) {
    section.tables.push_back(table);
  }
  ReportTable left{"Would save, and is not taken", {"what, and why"}, {}};
  for (const std::string& text : passes.together.left_out) {
    left.rows.push_back({text});
  }
  if (!left.rows.empty()) {
    section.tables.push_back(left);
  }
  return section;
}

// Of matrices whose inverse a rewrite needs: what they would make of a rounding.
std::optional<ReportSection> conditions_section(const PassAudit& audit) {
  const auto found = std::find_if(audit.alone.begin(), audit.alone.end(),
                                  [](const PassStep& step) { return !step.proposal.conditioning.empty(); });
  if (found == audit.alone.end()) {
    return std::nullopt;
  }
  Figure figure{.title = "Condition number of the matrices that could go, by block",
                .words =
                    "In the best gauge of their heads: how much a rewrite that inverts the matrix makes of a "
                    "rounding.",
                .x = {.words = "block"},
                .y = {.words = "condition number", .log = true}};
  for (const auto& [slot, name] : {std::pair{Slot::query, "query"}, {Slot::key, "key"}, {Slot::value, "value"}}) {
    Series series{.name = name};
    for (const Conditioning& c : found->proposal.conditioning) {
      if (c.matrix.slot == slot) {
        series.x.push_back(static_cast<double>(*c.matrix.block));
        series.y.push_back(c.gauged);
        series.labels.push_back(fmt::format("as stored {:.3g}{}", c.stored, c.chosen ? ", this one would go" : ""));
      }
    }
    if (!series.x.empty()) {
      figure.series.push_back(series);
    }
  }
  return ReportSection{.title = "What an inverse would cost", .words = "", .figures = {figure}};
}

}  // namespace

Report audit_report(const std::string& name, const Audit& audit, const nlohmann::ordered_json& described,
                    const ReportOrigin& origin) {
  Report report{.title = fmt::format("What “{}” can do without", name_of_path(name)),
                .summary = "What can provably go, under which theorem, and where it cannot, why not.",
                .measured = facts_of(origin),
                .verdicts = verdicts_of(audit)};
  if (audit.stored) {
    report.measured.push_back(
        {"model", fmt::format("{}, {}, {} of weights", audit.stored->family, word(audit.stored->dtype),
                              human_bytes(static_cast<uint64_t>(audit.stored->bytes)))});
  } else {
    report.measured.push_back({"model", "an architecture without weights"});
  }
  if (!described.is_null()) {
    report.fingerprint = hashes_of(described);
  }
  report.sections = {passes_section(audit), redundancy_section(audit.redundancy)};
  if (const std::optional<ReportSection> conditions = conditions_section(audit.passes)) {
    report.sections.push_back(*conditions);
  }
  report.sections.push_back(parts_section(audit));
  return report;
}

}  // namespace pare
