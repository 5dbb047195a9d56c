#include "pare/audit/redundancy.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/arch/count.h"
#include "pare/arch/norms.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

std::string share_of(int64_t part, int64_t whole) {
  return fmt::format("{:.2f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string lower_bound_text(const Redundancy& counted) {
  if (counted.is_exact()) {
    return "";
  }
  std::string text = wrapped("The count is a lower bound: the rules do not count every redundancy that comes from", 0);
  for (const std::string& reason : counted.lower_bound) {
    text += wrapped(reason, 4, "  - ");
  }
  return text;
}

std::string symmetry_table(const RedundancyAudit& audit, int64_t removable) {
  Table table({Align::left, Align::right, Align::right, Align::right},
              {"symmetry of the weights", "places", "parameters", "share"});
  for (const SymmetryCount& row : audit.counted.symmetries) {
    table.row({row.symmetry, with_commas(row.places), with_commas(row.parameters),
               share_of(row.parameters, audit.parameters)});
  }
  table.rule();
  table.row({audit.counted.is_exact() ? "redundant" : "redundant, at least", "", with_commas(audit.counted.total),
             share_of(audit.counted.total, audit.parameters)});
  table.row({"removable from a stored file", "", with_commas(removable), share_of(removable, audit.parameters)});
  return table.text();
}

std::string advice(const RedundancyAudit& audit) {
  std::string text =
      "Rotations and gauges only create zeros inside dense matrices, so less can be removed than is redundant.";
  if (audit.has_norms) {
    text +=
        " Norms and skips leave little freedom. What would leave more: to train the reduced form, to remove the norms "
        "by fine-tuning, or a skipless architecture.";
  }
  return wrapped(text, 0);
}

std::string proof_text(const TwinProof& proof) {
  const JacobianRank& measured = proof.measured;
  const std::string twin =
      fmt::format("a twin of width {} with {} parameters", proof.twin.width, with_commas(measured.parameters));
  if (!measured.is_determined()) {
    return wrapped(fmt::format("Check: undetermined. The singular values of {} have no clear gap: {:.1e}, at least "
                               "{:.0e} needed.",
                               twin, measured.gap, least_gap),
                   0);
  }
  const std::string found = fmt::format("of {} {} are redundant by the rank of its Jacobian (gap {:.1e})", twin,
                                        with_commas(measured.redundant()), measured.gap);
  if (proof.is_lower_bound()) {
    return wrapped(fmt::format("Check: {}, and the rules count at least {}: the count is a lower bound.", found,
                               with_commas(proof.counted.total)),
                   0);
  }
  if (proof.is_complete()) {
    return wrapped(fmt::format("Check: {}, and the rules count as many: the count is complete there.", found), 0);
  }
  return wrapped(fmt::format("Check: {}, but {} by the same rules: the count is NOT complete. Please report this "
                             "architecture.",
                             found, with_commas(proof.counted.total)),
                 0);
}

}  // namespace

RedundancyAudit audit_redundancy(const Architecture& architecture, Prove prove) {
  RedundancyAudit audit{.counted = redundancy(architecture), .parameters = count(architecture).total};
  Architecture copy = architecture;
  audit.has_norms = !norms_of(copy).empty();
  if (prove == Prove::yes) {
    audit.proof = prove_redundancy(architecture);
  }
  return audit;
}

std::string text_of(const RedundancyAudit& audit, int64_t removable) {
  const std::string text = symmetry_table(audit, removable) + lower_bound_text(audit.counted) + advice(audit);
  return audit.proof ? text + proof_text(*audit.proof) : text;
}

void add_json(nlohmann::ordered_json& json, const RedundancyAudit& audit) {
  json["redundant"] = audit.counted.total;
  json["symmetries"] = nlohmann::ordered_json::array();
  for (const SymmetryCount& row : audit.counted.symmetries) {
    json["symmetries"].push_back({{"symmetry", row.symmetry}, {"places", row.places}, {"parameters", row.parameters}});
  }
  if (!audit.counted.is_exact()) {
    json["lower_bound"] = audit.counted.lower_bound;
  }
  if (audit.proof) {
    const TwinProof& proof = *audit.proof;
    json["proof"] = {{"twin_parameters", proof.measured.parameters},
                     {"twin_redundant", nullptr},
                     {"predicted_redundant", proof.counted.total},
                     {"gap", proof.measured.gap},
                     {"complete", proof.is_complete()}};
    if (proof.measured.is_determined()) {
      json["proof"]["twin_redundant"] = proof.measured.redundant();
    }
  }
}

}  // namespace pare
