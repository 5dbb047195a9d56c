#pragma once
// What was measured of some sequences and what was measured of others, as one: batch after batch, also of other ranks.

#include <string>

#include "pare/probes/probe_results.h"

namespace pare {

// Adds what `part` counts. Both are of one model: what is the same for all sequences is there already.
void merge(ProbeResults& all, const ProbeResults& part);

// The gap of a prefix of so many tokens, which is there from now on.
Spread& gap_at(HeadMeasures& head, int64_t tokens);

// What is counted, as bytes, and back: `blank` has all else.
std::string packed(const ProbeResults& part);
ProbeResults unpacked(const std::string& bytes, const ProbeResults& blank);

}  // namespace pare
