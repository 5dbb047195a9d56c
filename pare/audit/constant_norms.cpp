#include "pare/audit/constant_norms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "pare/algebra/constant_norms.h"
#include "pare/arch/norms.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

constexpr const char* folding = "fold_constant_norm";

std::string percent(int64_t part, int64_t whole) {
  return fmt::format("{:.2f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

// Why little more can go: what the larger theorems need besides.
std::vector<std::string> reasons_for_rest(const Architecture& before, Architecture copy) {
  std::vector<std::string> found;
  const bool skips = std::ranges::any_of(before.blocks, [](const Block& block) {
    return block.attention.skip && block.mlp && (block.mlp->skip || block.wiring == Wiring::parallel);
  });
  if (skips) {
    found.emplace_back("skips around attention and MLP leave one basis for all layers");
  }
  if (before.head.tied) {
    found.emplace_back("the head is tied to the embedding");
  }
  const std::vector<PlacedNorm> norms = norms_of(copy);
  if (std::ranges::any_of(norms, [](const PlacedNorm& n) { return n.norm->kind == NormKind::layer; })) {
    found.emplace_back("a matrix that took in a LayerNorm's centring has no inverse");
  }
  return found;
}

std::set<std::string> scales_of(Architecture copy) {
  std::set<std::string> found;
  for (const PlacedNorm& placed : norms_of(copy)) {
    if (placed.norm->kind == NormKind::scale) {
      found.insert(name_of(placed.module));
    }
  }
  return found;
}

}  // namespace

std::optional<ConstantNorms> audit_constant_norms(const PassAudit& audit, const Architecture& architecture,
                                                  const std::string& model) {
  const auto step =
      std::ranges::find_if(audit.alone, [](const PassStep& step) { return step.call.pass->id == folding; });
  if (step == audit.alone.end() || !step->proposal.applies) {
    return std::nullopt;
  }
  ConstantNorms norms{.measured = step->proposal.notes.front(),
                      .saved = step->saved_parameters,
                      .removable = saved_together(audit),
                      .reasons = reasons_for_rest(architecture, architecture),
                      .command = fmt::format("pare rewrite {} -o OUT --passes {}", shell_word(model), folding)};
  const std::set<std::string> scales = scales_of(architecture);
  for (const Precondition& condition : step->proposal.preconditions) {
    if (scales.contains(condition.where)) {
      continue;  // which never were more than a map
    }
    ++norms.all;
    norms.removed += condition.holds ? 1 : 0;
    norms.constant += condition.holds || condition.expected != dwarfing_epsilon ? 1 : 0;
  }
  if (norms.removed == 0) {
    return std::nullopt;
  }
  for (const PassStep& taken : audit.together.steps) {
    const bool before = std::ranges::any_of(audit.alone, [&](const PassStep& alone) {
      return alone.call.pass == taken.call.pass && alone.proposal.applies;
    });
    if (!before) {
      norms.freed.emplace_back(taken.call.pass->id);
    }
  }
  return norms;
}

std::string text_of(const ConstantNorms& norms, const PassAudit& audit) {
  std::string text = norms.constant == norms.all ? "its norms do nothing\n" : "some of its norms do nothing\n";
  text += wrapped(norms.measured + ".", 2);
  text += wrapped(fmt::format("fold_constant_norm takes {} of them out: {} parameters ({}), of {} ({}) that all passes "
                              "remove together. What is gained is a model whose norms are really gone, for people who "
                              "study such models.",
                              norms.removed == norms.constant ? "all" : fmt::format("{}", norms.removed),
                              with_commas(norms.saved), percent(norms.saved, audit.parameters),
                              with_commas(norms.removable), percent(norms.removable, audit.parameters)),
                  2);
  if (!norms.freed.empty()) {
    text += wrapped(fmt::format("Then {} saves too.", fmt::join(norms.freed, ", ")), 2);
  } else if (!norms.reasons.empty()) {
    text += wrapped(fmt::format("No further pass saves then: {}.", fmt::join(norms.reasons, "; ")), 2);
  }
  return text + "  " + norms.command + "\n";
}

nlohmann::ordered_json to_json(const ConstantNorms& norms) {
  return {{"norms", norms.all},         {"constant", norms.constant},      {"removed", norms.removed},
          {"measured", norms.measured}, {"saved_parameters", norms.saved}, {"removable", norms.removable},
          {"freed", norms.freed},       {"reasons", norms.reasons},        {"command", norms.command}};
}

}  // namespace pare
