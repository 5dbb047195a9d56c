#pragma once
// A measured claim as people and programs read it: a table for the terminal, a page for experiments/, a document.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "pare/claims/claim.h"
#include "pare/report/report.h"

namespace pare {

struct Measured {
  const PaperClaim* claim = nullptr;
  Trial trial;
  Outcome outcome;
  double seconds = 0;  // of processor time
};

Measured measure(const PaperClaim& claim, const Trial& trial);

Figure figure_of(const ClaimTable& table);

std::string text_of(const Measured& measured);
// experiments/ID/README.md: claim, command, cost, claimed and measured, verdict.
std::string page_of(const Measured& measured);
// The pictures of that page by their names; of claims that keep runs.
std::map<std::string, std::string> pictures_of(const Measured& measured);
nlohmann::ordered_json to_json(const Measured& measured);
// `time` is when it was measured, `hashes` the SHA-256 of every file that was read.
Report report_of(const Measured& measured, const std::string& time, const std::vector<Fact>& hashes);

// Every claim with its recorded verdict: for the terminal, as a page, and as a document.
std::string list_of_claims();
std::string page_of_claims();
nlohmann::ordered_json claims_to_json();

}  // namespace pare
