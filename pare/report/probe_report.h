#pragma once
// What probes measured as a page: a verdict for each collapse, then ranks, entropy, heads, angles, spectra and widths.

#include <nlohmann/json_fwd.hpp>

#include "pare/probes/probe_results.h"
#include "pare/report/origin.h"

namespace pare {

// `described` comes from describe_files; `inputs` says what the sequences were.
Report probe_report(const std::string& name, const ProbeResults& results, const nlohmann::ordered_json& described,
                    const std::string& inputs, const ReportOrigin& origin);

}  // namespace pare
