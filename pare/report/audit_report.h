#pragma once
// An audit as a page: where parameters are, which are redundant, what each pass takes, and why others refuse.

#include "pare/audit/audit.h"
#include "pare/report/origin.h"

namespace pare {

// `described` comes from describe_files; null where there is no model folder, but a preset.
Report audit_report(const std::string& name, const Audit& audit, const nlohmann::ordered_json& described,
                    const ReportOrigin& origin);

}  // namespace pare
