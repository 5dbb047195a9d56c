// Paper 1's claims that need no training: counts, and which of its figures are rewrites.

#include "pare/claims/claim.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/presets.h"
#include "pare/audit/audit.h"
#include "pare/support/error.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

Audit audit_of_preset(const std::string& name) {
  const std::optional<Architecture> found = find_preset(name);
  PARE_CHECK(found, "the preset is there");
  return audit_architecture(*found);
}

// ---- The table of section 4, from the configurations alone

struct Printed {
  std::string preset, name, key_value, mlp, embeddings, total, remaining, saved, speedup;
};

void compare(const Printed& paper, Outcome& found) {
  const Audit audit = audit_of_preset(paper.preset);
  PARE_CHECK(audit.skipless, "every layer of the preset is skipless");
  const Skipless& counted = *audit.skipless;
  const double kept = static_cast<double>(counted.remaining) / static_cast<double>(counted.total);
  const auto add = [&](const std::string& what, const std::string& claimed, const std::string& measured) {
    found.compared.push_back({paper.name + ": " + what, claimed, measured});
  };
  add("Q and P of a layer", "33,554,432", with_commas(counted.query_output));
  add("K and V of a layer", paper.key_value, with_commas(counted.key_value));
  add("MLP of a layer", paper.mlp, with_commas(counted.mlp));
  add("embeddings", paper.embeddings, with_commas(counted.embeddings));
  add("all weights", paper.total, human_count(counted.total));
  add("without Q and P", paper.remaining, human_count(counted.remaining));
  add("saved", paper.saved, fmt::format("{:.0f}%", 100 * (1 - kept)));
  add("bound on the speed-up", paper.speedup, fmt::format("{:.2f}x", 1 / kept));
}

Outcome weight_table(const Trial&) {
  Outcome found;
  compare({"skipless-pythia-6.9b", "Pythia-6.9B", "33,554,432", "134,217,728", "412,876,800", "6.9B", "5.8B", "16%",
           "1.19x"},
          found);
  compare(
      {"skipless-mistral-7b", "Mistral-7B", "8,388,608", "176,160,768", "262,144,000", "7.2B", "6.2B", "15%", "1.17x"},
      found);
  const bool equal =
      std::ranges::all_of(found.compared, [](const Compared& row) { return row.claimed == row.measured; });
  found.verdict = equal ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because =
      "every count of the table, from the configurations; the speed-up is a bound for decoding one sequence";
  return found;
}

// ---- Figure 3: parallel blocks without Q and P. An architecture to train: no rewrite reaches it.

Outcome parallel_blocks(const Trial&) {
  const Audit audit = audit_of_preset("skipless-pythia-6.9b");
  const int64_t square = audit.architecture.width * audit.architecture.width, layers = audit.layers;
  int64_t saved = 0;
  for (const PassStep& step : audit.passes.alone) {
    saved = step.call.pass->id == "merge_skipless" ? step.saved_parameters : saved;
  }
  const int64_t matrices = (saved + square - 1) / square;
  Outcome found;
  found.compared = {{"matrices d x d that can be removed in 32 layers", "64", fmt::format("{}", matrices)},
                    {"saved of all weights", "16%",
                     fmt::format("{:.1f}%", 100 * static_cast<double>(saved) / static_cast<double>(audit.parameters))}};
  found.verdict = matrices == 2 * layers ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format(
      "attention and MLP share both streams, so each stream has one free basis: {} matrices can be removed exactly, "
      "not {}",
      matrices, 2 * layers);
  return found;
}

}  // namespace

std::vector<PaperClaim> claims_of_skipless() {
  constexpr Paper paper = Paper::skipless;
  return {{"weight-table", paper, "Section 4",
           "Pythia-6.9B loses 16 % and Mistral-7B 15 % of their weights without Q and P.", ClaimVerdict::holds,
           "16% and 15%, as printed", weight_table},
          {"parallel-blocks", paper, "Figure 3",
           "Q and P can be merged into other matrices in parallel skipless blocks too.", ClaimVerdict::does_not_hold,
           "33 of 64 matrices can be removed, 8.1%", parallel_blocks}};
}

}  // namespace pare
