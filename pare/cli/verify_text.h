#pragma once
// What `pare verify` says of two models, in words and tables for a terminal.

#include <optional>
#include <string>

#include "pare/probes/alignment.h"
#include "pare/verify/certificate.h"
#include "pare/verify/verify.h"

namespace pare {

std::string short_size(double value);  // 1.23e-07, or 0

// All that is told of the candidate besides the verification.
struct VerifiedCandidate {
  const ModelFolder* model = nullptr;  // none: only what it said is known
  std::optional<Claim> claim = {};
  std::optional<Alignment> alignment = {};
  UnusedDifference unused = {};
};

std::string verification_text(const ModelFolder& reference, const VerifiedCandidate& candidate,
                              const std::string& input_kind, const Verification& verification);

}  // namespace pare
