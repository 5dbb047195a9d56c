#pragma once
// The sections of a probe's page; each leaves out what there is nothing of.

#include "pare/probes/probe_results.h"
#include "pare/report/report.h"

namespace pare {

ReportSection rank_section(const ProbeResults& results);
ReportSection entropy_section(const ProbeResults& results);
ReportSection heads_section(const ProbeResults& results);
ReportSection angles_section(const ProbeResults& results);
ReportSection spectra_section(const ProbeResults& results);
ReportSection norms_section(const ProbeResults& results);
ReportSection width_section(const ProbeResults& results);

// A point of a line with spread: not a number where it is undefined.
void add_point(Series& series, double x, const Spread& value);
double mean_of(const Spread& value);

// Mean and deviation of several numbers, those that are none left out.
struct MeanAndDeviation {
  double mean, deviation;
};
MeanAndDeviation over(const std::vector<double>& values);

}  // namespace pare
