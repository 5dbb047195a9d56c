#pragma once
// What stands in the way of exact passes and can be trained away: norms, and skips around MLPs. What would go without
// them, and the command.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/audit/passes.h"

namespace pare {

struct TrainedAway {
  std::string what;  // "norms", or "norms and MLP skips" where norms alone are not all that is in the way
  std::vector<std::string> passes;     // that would apply without them, and do not with them
  int64_t removable = 0;               // parameters that could go then, the norms' own among them
  std::vector<std::string> obstacles;  // why the norms cannot be trained away; empty where they can
  std::string command;                 // for a shell; empty where they cannot
};

// Nothing where there are no norms, or nothing is gained without them. `model`: the folder, or a word for it.
std::optional<TrainedAway> audit_norms(const PassAudit& audit, const Architecture& architecture,
                                       const std::string& model);

std::string text_of(const TrainedAway& away, const PassAudit& audit);
nlohmann::ordered_json to_json(const TrainedAway& away);

}  // namespace pare
