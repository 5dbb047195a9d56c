#pragma once
// What a probe measured, in tables for people, 80 columns wide.

#include <string>

#include "pare/probes/probe_results.h"

namespace pare {

enum class HeadRows { layers, heads };  // one row for the heads of a layer together, or one for each
std::string text_of(const ProbeResults& results, HeadRows rows);

}  // namespace pare
