#pragma once
// Where a probe looks: the points and norms of an architecture, in running order, and what stands there when a layer
// has run.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/block.h"
#include "pare/model/taps.h"
#include "pare/probes/probe_results.h"

namespace pare {

struct ProbePoints {
  std::vector<PointMeasures> points;
  std::vector<NormMeasures> norms;
};
ProbePoints find_points(const Architecture& architecture);

// The taps that these need.
void record_points(Taps& taps);

// What stands at every point of a layer that just ran, by the point's name; the stream after it comes with the next.
std::map<std::string, at::Tensor> values_at_points(const BlockLayer& block, const Taps& taps, int64_t layer);

}  // namespace pare
