#include "pare/algebra/shift.h"

#include <ATen/ATen.h>

#include "pare/algebra/operations.h"
#include "pare/arch/norm_exits.h"

namespace pare {

namespace {

// Neuron heads keep their bias in the last column of the matrix itself.
bool has_bias_column(const Port& port, const Shape& shape, int64_t width) {
  return port.tensor.module.sublayer == Sublayer::mlp && shape.back() == width + 1;
}

// Keys that are computed from values take the values' bias off first (or values the keys'): a constant in that bias is
// taken off again before the other sees it.
bool is_taken_off(const Architecture& architecture, const ModuleId& module) {
  if (module.sublayer != Sublayer::attention) {
    return false;
  }
  const Attention& t = architecture.blocks[*module.block].attention;
  return (is<FromValue>(t.key) && module.slot == Slot::value) || (is<FromKey>(t.value) && module.slot == Slot::key);
}

// The bias, where there is one, and W c.
Weight with_added(const Weight& bias, const Weight& matrix, const Weight& constant) {
  const Formula added = constant.formula() * matrix.formula();
  if (!bias) {
    return computed({matrix.shape()[0]}, added, {matrix, constant},
                    [](const std::vector<at::Tensor>& in) { return at::mv(in[0], in[1]); });
  }
  return computed({matrix.shape()[0]}, bias.formula() + added, {matrix, constant, bias},
                  [](const std::vector<at::Tensor>& in) { return in[2] + at::mv(in[0], in[1]); });
}

}  // namespace

std::vector<std::string> readers_without_bias(const Architecture& architecture, const TensorTable& stored,
                                              const Stream& stream) {
  std::vector<std::string> without;
  for (const Port& port : stream.ports) {
    if (port.role != Role::reader) {
      continue;
    }
    const ModuleId& module = port.tensor.module;
    const Shape& shape = stored.at(port.tensor).shape;
    if (shape.size() != 2 || port.tensor.kind == TensorKind::bias) {  // collapsed scores and values read both sides
      without.push_back(name_of(port.tensor));
    } else if (is_taken_off(architecture, module)) {
      without.push_back(name_of(module) + " under a slim cache");
    } else if (!has_bias_column(port, shape, stream.width) && !stored.contains(bias_of(module))) {
      without.push_back(name_of(module));
    }
  }
  return without;
}

void shift_readers(Model& model, const Stream& stream, const Weight& constant) {
  for (const Port& port : stream.ports) {
    if (port.role != Role::reader) {
      continue;
    }
    const ModuleId& module = port.tensor.module;
    const std::string bias = name_of(bias_of(module)), reader = name_of(port.tensor);
    const int64_t width = stream.width;
    const bool column = model.has_weights() && has_bias_column(port, model.weights.at(reader).shape(), width);
    if (bool* const flag = bias_flag(model.architecture, module)) {
      *flag = true;
    }
    if (!model.has_weights()) {
      continue;
    }
    const Weight matrix = model.weights.at(reader);
    if (column) {
      const Formula sheared = Formula::enclosed("[I 0; ", constant.formula(), " 1]") * matrix.formula();
      model.weights[reader] = computed(matrix.shape(), sheared, {matrix, constant}, [=](std::vector<at::Tensor>& in) {
        at::Tensor extended = in[0].clone();
        extended.select(1, width).add_(at::mv(extended.narrow(1, 0, width), in[1]));
        return extended;
      });
      continue;
    }
    const auto old = model.weights.find(bias);
    model.weights[bias] = with_added(old == model.weights.end() ? Weight() : old->second, matrix, constant);
  }
}

}  // namespace pare
