#pragma once
// The part of `audit` that counts what exact reparametrisation makes redundant, and proves the count on a small twin.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "pare/probes/twin.h"
#include "pare/redundancy/redundancy.h"

namespace pare {

enum class Prove { no, yes };

struct RedundancyAudit {
  Redundancy counted;
  int64_t parameters = 0;
  bool has_norms = false;          // which is why so little is redundant
  std::optional<TwinProof> proof;  // where it was asked for
};

RedundancyAudit audit_redundancy(const Architecture& architecture, Prove prove);

// `removable`: what the passes take out of a stored file.
std::string text_of(const RedundancyAudit& audit, int64_t removable);
void add_json(nlohmann::ordered_json& json, const RedundancyAudit& audit);

}  // namespace pare
