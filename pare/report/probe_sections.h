#pragma once
// The sections of a probe's page; each leaves out what there is nothing of.

#include <functional>
#include <limits>

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

constexpr double not_known = std::numeric_limits<double>::quiet_NaN();
double mean_of(const Spread& value);

// Mean and deviation of several numbers, those that are none left out.
struct MeanAndDeviation {
  double mean, deviation;
};
MeanAndDeviation over(const std::vector<double>& values);

// A point of a line, with spread or without: not a number where it is undefined.
void add_point(Series& series, double x, const Spread& value);
void add_point(Series& series, double x, const MeanAndDeviation& value);
void add_point(Series& series, double x, double value);

// A line over the layers: the mean of what `numbers` finds in each, with their own spread.
using LayerNumbers = std::function<std::vector<double>(const LayerMeasures&)>;
Series by_layer(const ProbeResults& results, const std::string& name, const LayerNumbers& numbers);
std::vector<std::string> head_names(const ProbeResults& results);  // of the layer that has most

}  // namespace pare
