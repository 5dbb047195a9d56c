#include "pare/algebra/amplification.h"

#include <algorithm>

namespace pare {

double amplification(const Model& model, const TensorId& tensor) {
  const auto found = model.amplified.find(name_of(tensor));
  return found == model.amplified.end() ? 1 : found->second;
}

double amplification(const Model& model, const ModuleId& a, const ModuleId& b) {
  return amplification(model, weight_of(a)) * amplification(model, weight_of(b));
}

double amplification(const Model& model, const std::vector<Port>& ports) {
  double most = 1;
  for (const Port& port : ports) {
    most = std::max(most, amplification(model, port.tensor));
  }
  return most;
}

void amplify(Model& model, const TensorId& tensor, double factor) {
  if (factor > 1) {
    model.amplified[name_of(tensor)] = factor * amplification(model, tensor);
  }
}

void amplify(Model& model, const std::vector<Port>& ports, double factor) {
  for (const Port& port : ports) {  // a collapsed matrix may have two axes on one stream, and then counts both
    if (model.weights.contains(name_of(port.tensor))) {
      amplify(model, port.tensor, factor);
    }
  }
}

}  // namespace pare
