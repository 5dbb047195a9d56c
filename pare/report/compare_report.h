#pragma once
// Training runs side by side as a page: the table of losses, and the curves with the spread of the seeds.

#include "pare/report/origin.h"
#include "pare/train/compare.h"

namespace pare {

Report compare_report(const RunComparison& comparison, const ReportOrigin& origin);

}  // namespace pare
