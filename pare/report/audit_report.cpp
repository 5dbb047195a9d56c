#include "pare/report/pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/audit/audit.h"
#include "pare/rewrite/reasons.h"
#include "pare/support/mapped.h"
#include "pare/support/numbers.h"

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
  ReportVerdict verdict{.name = "Redundant parameters",
                        .words =
                            "Directions in which the weights can move without changing the function. Most of them only "
                            "make zeros inside dense matrices, so a file can lose fewer parameters than this."};
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
      .number = fmt::format("{} measured, {} counted", with_commas(proof.measured.redundant()),
                            with_commas(proof.counted.total)),
      .words = fmt::format("Checked on a small model of the same kind, of width {} with {} parameters. Measured: its "
                           "parameters minus the rank of its Jacobian (gap between singular values: {:.0e}).",
                           proof.twin.width, with_commas(proof.measured.parameters), proof.measured.gap),
      .tone = proof.is_complete() ? Tone::good : Tone::bad};
  if (!proof.measured.is_determined() || !proof.counted.is_exact()) {
    verdict.word = "undetermined";
    verdict.tone = Tone::fair;
  }
  return verdict;
}

std::vector<ReportVerdict> verdicts_of(const Audit& audit) {
  const int64_t saved = saved_together(audit.passes);
  std::vector<ReportVerdict> list = {
      {"Removable from the file, exactly", share_text(saved, audit.parameters),
       fmt::format("{} of {} parameters", with_commas(saved), with_commas(audit.parameters)),
       fmt::format("{} less, by all passes that save something, one after the other. The function stays the same.",
                   human_bytes(static_cast<uint64_t>(std::max<int64_t>(0, bytes_of(saved, audit.passes.dtype))))),
       saved > 0 ? Tone::good : Tone::neutral},
      redundancy_verdict(audit)};
  if (audit.redundancy.proof) {
    list.push_back(proof_verdict(*audit.redundancy.proof));
  }
  if (audit.constant_norms) {
    const ConstantNorms& norms = *audit.constant_norms;
    list.push_back({"Norms that do nothing", fmt::format("{} of {}", norms.constant, norms.all),
                    fmt::format("fold_constant_norm takes out {}", norms.removed),
                    fmt::format("{}. What is gained is a model whose norms are really gone, for people who study such "
                                "models.",
                                norms.measured),
                    Tone::neutral});
  }
  if (audit.without_norms) {
    list.push_back(
        {fmt::format("Removable after training without {}", audit.without_norms->what),
         share_text(audit.without_norms->removable, audit.parameters),
         fmt::format("{} parameters, instead of {}", with_commas(audit.without_norms->removable), with_commas(saved)),
         "Such training changes the function and costs some loss. The section below has the command and measured "
         "costs.",
         Tone::neutral});
  }
  return list;
}

ReportSection parts_section(const Audit& audit) {
  std::vector<std::pair<std::string, int64_t>> counts =
      mapped(audit.parts, [](const PartRow& row) { return std::pair(std::string(word(row.part)), row.total); });
  std::ranges::sort(counts, std::ranges::greater(), [](const auto& entry) { return entry.second; });
  return {.title = "Where the parameters are",
          .words = fmt::format("{} layers{}. Each token adds {} numbers to the key-value cache.", audit.layers,
                               audit.distinct_blocks == audit.layers
                                   ? ""
                                   : fmt::format(", which share the weights of {}", audit.distinct_blocks),
                               with_commas(audit.cache_elements)),
          .figures = {counts_figure("Parameters of each part", "", "part", counts, audit.parameters)}};
}

// What keeps passes from applying and can be trained away: what would go then, how, and what that cost elsewhere.
ReportSection training_section(const TrainedAway& away, const Audit& audit) {
  ReportSection section{
      .title = fmt::format("Train them away: {}", away.what),
      .words = fmt::format("Without its {}, {} would apply, and {} parameters ({}) could go instead of {}.", away.what,
                           fmt::join(away.passes, ", "), with_commas(away.removable),
                           share_text(away.removable, audit.parameters), with_commas(saved_together(audit.passes)))};
  if (away.commands.empty()) {
    section.words += " " + why_no_command(away);
    return section;
  }
  section.words +=
      " The first command draws samples from the model, the second fades them out while the model learns from these "
      "samples to stay what it is. ";
  section.words += beyond_measured;
  section.command = fmt::format("{}", fmt::join(away.commands, "\n"));
  ReportTable table{"What these commands cost where they were measured",
                    {"trained away", "model", "parameters", "steps to fade out",
                     "loss above the model (nats per token), ± half of its 95 % interval", "seeds"},
                    {}};
  for (const MeasuredCost& cost : measured_costs()) {
    table.rows.push_back({cost.what, cost.model, with_commas(cost.parameters),
                          fmt::format("{} of {}", with_commas(cost.morph_steps), with_commas(cost.steps)),
                          cost_in_words(cost), seeds_in_words(cost)});
  }
  if (!table.rows.empty()) {
    section.tables.push_back(table);
  }
  return section;
}

ReportSection redundancy_section(const RedundancyAudit& audit) {
  ReportSection section{.title = "Redundant parameters, by symmetry",
                        .words =
                            "A symmetry changes the weights and leaves the function as it is. Its dimension is the "
                            "number of parameters that it makes redundant."};
  if (!audit.counted.is_exact()) {
    ReportTable table{"Why this is a lower bound", {"not fully counted"}, {}};
    for (const std::string& reason : audit.counted.lower_bound) {
      table.rows.push_back({reason});
    }
    section.tables.push_back(table);
  }
  const std::vector<std::pair<std::string, int64_t>> counts = mapped(
      audit.counted.symmetries, [](const SymmetryCount& row) { return std::pair(row.symmetry, row.parameters); });
  if (!counts.empty()) {
    section.figures.push_back(counts_figure(
        "Redundant parameters of each symmetry",
        "Redundant does not mean removable: a rotation of a dense matrix makes zeros, but leaves it a dense matrix.",
        "symmetry", counts, audit.parameters));
  }
  return section;
}

std::string reasons_text(const PassStep& step) {
  std::string text;
  for (const Reason& reason : reasons_against(step.proposal)) {
    if (!reason.remedy.empty()) {
      const std::string none = "none: ";
      text +=
          fmt::format("{}{}: {}. Needs {}. {}.", text.empty() ? "" : "\n", reason.where, reason.found, reason.expected,
                      reason.remedy.starts_with(none) ? "Nothing helps: " + reason.remedy.substr(none.size())
                                                      : "What would help: " + reason.remedy);
    }
  }
  for (const std::string& note : step.proposal.notes) {
    text += fmt::format("{}{}", text.empty() ? "" : "\n", note);
  }
  return text;
}

std::string change_text(int64_t saved) {
  return saved == 0 ? "as many" : fmt::format("{} {}", with_commas(std::abs(saved)), saved > 0 ? "fewer" : "more");
}

ReportSection passes_section(const Audit& audit) {
  const PassAudit& passes = audit.passes;
  const int64_t applying =
      std::ranges::count_if(passes.alone, [](const PassStep& step) { return step.proposal.applies; });
  ReportSection section{
      .title = "What each pass removes",
      .words =
          fmt::format("A pass is one exact rewrite, with its theorem. {} of {} apply to the model as it is. Passes "
                      "overlap: together they may save less than the sum.",
                      applying, passes.alone.size())};
  Figure figure{.kind = FigureKind::bars,
                .title = "Parameters that each pass removes",
                .words =
                    "Alone, and as one of those that are applied together. Passes that remove no parameters are in the "
                    "table only.",
                .x = {.words = "pass"},
                .y = {.words = "parameters removed"},
                .series = {{.name = "alone"}, {.name = "together with the others"}}};
  ReportTable table{"Results and reasons", {"pass", "result", "parameters", "reasons, and what would help"}, {}};
  for (const PassStep& step : passes.alone) {
    const std::string id(step.call.pass->id), reasons = reasons_text(step);
    // One that adds a table, to save time, would squeeze the bars of all others.
    if (step.proposal.applies && step.saved_parameters > 0) {
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
      figure.series[1].labels.push_back("as one of those that save most together");
    }
    if (step.proposal.applies || !reasons.empty()) {
      table.rows.push_back({id, step.proposal.applies ? "applies" : "refused",
                            step.proposal.applies ? change_text(step.saved_parameters) : "", reasons});
    }
  }
  if (!figure.x.names.empty()) {
    section.figures.push_back(figure);
  }
  if (!table.rows.empty()) {
    section.tables.push_back(table);
  }
  ReportTable left{"Would save parameters, but was not chosen", {"pass and reason"}, {}};
  for (const std::string& text : passes.together.left_out) {
    left.rows.push_back({text});
  }
  if (!left.rows.empty()) {
    section.tables.push_back(left);
  }
  return section;
}

// Of matrices whose inverse a rewrite needs: by how much they would amplify rounding.
std::optional<ReportSection> conditions_section(const PassAudit& audit) {
  const auto found =
      std::ranges::find_if(audit.alone, [](const PassStep& step) { return !step.proposal.conditioning.empty(); });
  if (found == audit.alone.end()) {
    return std::nullopt;
  }
  Figure figure{
      .title = "Condition number of the matrices that could be eliminated",
      .words =
          "A rewrite that inverts a matrix amplifies rounding errors by up to its condition number. Shown for "
          "the best-conditioned equivalent form of each head.",
      .x = {.words = "block"},
      .y = {.words = "condition number", .log = true, .least = 1}};
  for (const auto& [slot, name] : {std::pair{Slot::query, "query"}, {Slot::key, "key"}, {Slot::value, "value"}}) {
    Series series{.name = name};
    for (const Conditioning& c : found->proposal.conditioning) {
      if (c.matrix.slot == slot) {
        series.x.push_back(static_cast<double>(*c.matrix.block));
        series.y.push_back(c.gauged);
        series.labels.push_back(
            fmt::format("as stored {:.3g}{}", c.stored, c.chosen ? ", this one would be eliminated" : ""));
      }
    }
    if (!series.x.empty()) {
      figure.series.push_back(series);
    }
  }
  return ReportSection{.title = "Cost of inverting a matrix", .words = "", .figures = {figure}};
}

}  // namespace

Report audit_report(const std::string& name, const Audit& audit, const nlohmann::ordered_json& described,
                    const ReportOrigin& origin) {
  Report report{
      .title = fmt::format("What “{}” can do without", title_of_path(name)),
      .summary = "Which parameters can be removed without changing the function, by which pass, and why not more.",
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
  report.sections = {passes_section(audit)};
  if (audit.without_norms) {
    report.sections.push_back(training_section(*audit.without_norms, audit));
  }
  report.sections.push_back(redundancy_section(audit.redundancy));
  if (const std::optional<ReportSection> conditions = conditions_section(audit.passes)) {
    report.sections.push_back(*conditions);
  }
  report.sections.push_back(parts_section(audit));
  return report;
}

}  // namespace pare
