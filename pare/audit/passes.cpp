#include "pare/audit/passes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "pare/arch/count.h"
#include "pare/rewrite/reasons.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

int64_t saved_together(const PassAudit& audit) {
  return audit.parameters - count(audit.together.after.architecture).total;
}

namespace {

constexpr Dtype stored_types[] = {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16};
constexpr double quick_work = 3e10;  // cubed widths of the matrices to measure; a few seconds on two cores

// The singular values of a square matrix cost its width cubed, and every layer has up to three such matrices.
double measuring_work(const Architecture& architecture) {
  double work = 0;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    const bool square = spec.shape.size() == 2 && spec.shape[0] == spec.shape[1];
    if (square && (spec.part == Part::query || spec.part == Part::key || spec.part == Part::value)) {
      work += std::pow(static_cast<double>(spec.shape[0]), 3);
    }
  }
  return work;
}

// Whether condition numbers decide anything: the pass inverts matrices, and would change the count, as far as structure
// says.
bool needs_conditions(const Architecture& architecture, const Pass& pass) {
  return pass.inverts && run_passes({architecture, {}}, {call_of(pass)}).steps.front().saved_parameters != 0;
}

bool is_quick(const Architecture& architecture) {
  const auto needs = [&](const Pass* pass) { return needs_conditions(architecture, *pass); };
  return measuring_work(architecture) <= quick_work || std::ranges::none_of(all_passes(), needs);
}

std::string share(int64_t saved, int64_t of) {
  return fmt::format("{:.2f} %", 100 * static_cast<double>(saved) / static_cast<double>(of));
}

std::string signed_bytes(int64_t bytes) {
  return (bytes < 0 ? "-" : "") + human_bytes(static_cast<uint64_t>(std::abs(bytes)));
}

double speedup(int64_t parameters, int64_t saved) {
  return static_cast<double>(parameters) / static_cast<double>(parameters - saved);
}

std::vector<std::string> saving_cells(const PassAudit& audit, std::string name, int64_t saved, int64_t bytes) {
  // What grows may be a table, of which a token reads one row: no bound on decoding follows from its size.
  const std::string decoding = saved < 0 ? "-" : fmt::format("{:.2f}x", speedup(audit.parameters, saved));
  return {std::move(name), with_commas(saved), signed_bytes(bytes), share(saved, audit.parameters), decoding};
}

// Whether there is anything that a refused pass could have removed; what is not there needs no remedy.
bool has_subject(const PassStep& step) {
  const std::vector<Reason> reasons = reasons_against(step.proposal);
  return std::ranges::any_of(reasons, [](const Reason& reason) { return !reason.remedy.empty(); });
}

std::string saving_table(const PassAudit& audit) {
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right},
              {"exact rewrite", "parameters", std::string(word(audit.dtype)), "share", "decoding"});
  for (const PassStep& step : audit.alone) {
    if (step.proposal.applies) {
      table.row(
          saving_cells(audit, std::string(step.call.pass->id), step.saved_parameters, saved_bytes(step, audit.dtype)));
    } else {
      table.row({std::string(step.call.pass->id), has_subject(step) ? "refused" : "not present"});
    }
  }
  table.rule();
  int64_t bytes = 0;
  for (const PassStep& step : audit.together.steps) {
    bytes += saved_bytes(step, audit.dtype);
  }
  table.row(saving_cells(audit, "all that save, combined", saved_together(audit), bytes));
  return table.text() +
         wrapped("Savings are those of the strict form; --form compat keeps all shapes and the size.", 0);
}

std::string error_table(const PassAudit& audit) {
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right});
  std::vector<std::string> head = {"predicted relative error, stored in"};
  for (Dtype dtype : stored_types) {
    head.emplace_back(word(dtype));
  }
  table.row(head);
  table.rule();
  bool any = false;
  for (const PassStep& step : audit.alone) {
    if (!step.proposal.applies || !step.proposal.after.has_weights()) {
      continue;
    }
    any = true;
    std::vector<std::string> cells = {std::string(step.call.pass->id)};
    for (Dtype dtype : stored_types) {
      const double error = predicted_error(step.proposal.roundings, dtype);
      cells.push_back(error == 0 ? "0" : fmt::format("{:.1e}", error));
    }
    table.row(cells);
  }
  return any ? "\n" + table.text() : "";
}

std::string condition_text(double value) {
  return value < 9999.5 ? fmt::format("{:.4g}", value) : fmt::format("{:.1e}", value);
}

// One row for each block, one column for each matrix: as stored -> in the best gauge of its heads; * is removed.
std::string condition_table(const std::vector<Conditioning>& conditioning) {
  std::map<int64_t, std::map<Slot, std::string>> cells;
  for (const Conditioning& c : conditioning) {
    cells[*c.matrix.block][c.matrix.slot] =
        fmt::format("{} -> {}{}", condition_text(c.stored), condition_text(c.gauged), c.chosen ? " *" : "");
  }
  Table table({Align::left, Align::right, Align::right, Align::right}, {"condition", "query", "key", "value"});
  for (const auto& [block, matrices] : cells) {
    std::vector<std::string> row = {fmt::format("block {}", block)};
    for (Slot matrix : {Slot::query, Slot::key, Slot::value}) {
      const auto found = matrices.find(matrix);
      row.push_back(found == matrices.end() ? "-" : found->second);
    }
    table.row(row);
  }
  return "\n" + table.text() + wrapped("as stored -> in the best gauge of the heads; * is the one that would go", 0);
}

std::string reason_text(const PassStep& step) {
  std::string text;
  for (const std::string& note : step.proposal.notes) {
    text += wrapped(note, 2);
  }
  for (const Reason& reason : told_together(reasons_against(step.proposal))) {
    if (reason.remedy.empty()) {
      continue;
    }
    text += wrapped(fmt::format("{}: {}", reason.where, reason.found), 2);
    text += wrapped(fmt::format("needs {}; what would help: {}", reason.expected, reason.remedy), 4);
  }
  return text.empty() ? "" : fmt::format("\n{}\n{}", step.call.pass->id, text);
}

}  // namespace

PassAudit audit_passes(const Model& model, Dtype dtype, Measure measure) {
  PassAudit audit;
  audit.parameters = count(model.architecture).total;
  audit.dtype = dtype;
  audit.measured = model.has_weights() && (measure == Measure::always || is_quick(model.architecture));
  audit.skipped = model.has_weights() && !audit.measured;
  const Model asked{model.architecture, audit.measured ? model.weights : Weights{}};
  for (const Pass* pass : all_passes()) {
    const bool numbers =
        audit.measured && (!pass->inverts || measure == Measure::always || needs_conditions(model.architecture, *pass));
    PassStep step = run_passes(numbers ? asked : Model{model.architecture, {}}, {call_of(*pass)}).steps.front();
    if (!step.proposal.applies && measure == Measure::always) {  // refused before anything was measured
      step.proposal = pass->propose(asked, step.call.options, std::nullopt);
    }
    audit.alone.push_back(std::move(step));
  }
  audit.together = choose_passes(asked);
  return audit;
}

std::string text_of(const PassAudit& audit) {
  std::string text = saving_table(audit);
  if (audit.measured) {
    text += error_table(audit);
  }
  for (const PassStep& step : audit.alone) {
    text += reason_text(step);
  }
  for (const PassStep& step : audit.alone) {
    if (!step.proposal.conditioning.empty() && step.call.pass->id == "eliminate_projection") {
      text += condition_table(step.proposal.conditioning);
    }
  }
  if (audit.skipped) {
    text += "\n" + wrapped("Condition numbers of matrices this large take minutes: --conditions measures them.", 0);
  }
  return text;
}

void add_json(nlohmann::ordered_json& json, const PassAudit& audit) {
  json["removable"] = saved_together(audit);
  json["measured"] = audit.measured;
  json["passes"] = nlohmann::ordered_json::array();
  for (const PassStep& step : audit.alone) {
    nlohmann::ordered_json pass = to_json(step, audit.dtype);
    for (Dtype dtype : stored_types) {
      pass["predicted_error_by_dtype"][std::string(word(dtype))] = predicted_error(step.proposal.roundings, dtype);
    }
    pass["speedup"] = speedup(audit.parameters, step.saved_parameters);
    json["passes"].push_back(std::move(pass));
  }
}

}  // namespace pare
