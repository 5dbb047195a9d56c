#include "pare/algebra/normed_streams.h"

#include <ATen/ATen.h>

#include <optional>
#include <set>
#include <utility>

#include "pare/algebra/amplification.h"
#include "pare/algebra/operations.h"
#include "pare/arch/norms.h"

namespace pare {

namespace {

std::optional<size_t> stream_touched(const Streams& streams, const ModuleId& module, TouchKind kind) {
  for (size_t i = 0; i < streams.all.size(); ++i) {
    for (const Touch& touch : streams.all[i].touches) {
      if (touch.kind == kind && touch.module == module) {
        return i;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<NormBetween> norms_between(const Architecture& architecture, const Streams& streams) {
  Architecture copy = architecture;
  std::vector<NormBetween> norms;
  for (const PlacedNorm& site : norms_of(copy)) {
    const std::optional<size_t> reads = stream_touched(streams, site.module, TouchKind::norm_reads);
    const std::optional<size_t> writes = stream_touched(streams, site.module, TouchKind::norm_writes);
    if (reads && writes) {
      norms.push_back({site.module, *site.norm, *reads, *writes});
    }
  }
  return norms;
}

bool has_uniform_gain(const Model& model, const NormBetween& norm) {
  if (!norm.norm.gain || !model.has_weights()) {
    return true;
  }
  const at::Tensor gain = load_double(model.weights.at(name_of(weight_of(norm.module))));
  return (gain == gain[0]).all().item<bool>();
}

bool is_table_of_both_ends(const Architecture& architecture) {
  return architecture.head.tied && architecture.first_layer == FirstLayer::dense;
}

void step_along(RoundingWalk& walk, const Model& model, const std::vector<Port>& ports) {
  const double amplified = amplification(model, ports);
  std::set<std::pair<std::optional<int64_t>, Sublayer>> places;
  for (const Port& port : ports) {
    places.emplace(port.tensor.module.block, port.tensor.module.sublayer);
  }
  for (const auto& [block, sublayer] : places) {
    walk.step(amplified, block ? runs_of(model.architecture, *block) : 1);
  }
}

}  // namespace pare
