#pragma once
// A comparison of two models as a page: the verdict, layer by layer, row by row, tensor by tensor.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "pare/report/origin.h"
#include "pare/verify/verify.h"

namespace pare {

// `reference` and `candidate` come from describe_files.
Report verify_report(const nlohmann::ordered_json& reference, const nlohmann::ordered_json& candidate,
                     const std::string& input_kind, const Verification& verification, const ReportOrigin& origin);

}  // namespace pare
