#include "pare/algebra/normed_streams.h"

#include <ATen/ATen.h>

#include <optional>
#include <set>
#include <utility>

#include "pare/algebra/amplification.h"
#include "pare/algebra/operations.h"

namespace pare {

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
