#pragma once
// Which of the four collapses the numbers of a probe amount to: rank in depth (Dong et al. 2021), rank in width (Nait
// Saada et al. 2024), head-channel non-identifiability, entropy (Zhai et al. 2023). docs/probes.md has the rules.

#include <vector>

#include "pare/arch/architecture.h"
#include "pare/probes/probe_results.h"

namespace pare {

std::vector<CollapseFinding> find_collapses(const ProbeResults& results, const Architecture& architecture);

const char* word(Collapse collapse);
const char* word(CollapseVerdict verdict);
const char* word(PointKind kind);

}  // namespace pare
