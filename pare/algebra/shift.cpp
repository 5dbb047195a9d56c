#include "pare/algebra/shift.h"

#include <ATen/ATen.h>

#include <set>

#include "pare/algebra/operations.h"
#include "pare/arch/tensors.h"
#include "pare/support/error.h"

namespace pare {

namespace {

std::string module_of(const Port& port) {
  PARE_CHECK(port.tensor.ends_with(".weight"), "a reader is a matrix");
  return port.tensor.substr(0, port.tensor.size() - 7);
}

// Neuron heads keep their bias in the last column of the matrix itself.
bool has_bias_column(const Port& port, const Shape& shape, int64_t width) {
  return port.tensor.find(".mlp.") != std::string::npos && shape.back() == width + 1;
}

void create_mlp_bias(Architecture& architecture, const std::string& module) {
  std::vector<Block> blocks = expanded_blocks(architecture);
  const size_t block = std::stoul(module.substr(7));
  MlpBias& bias = blocks[block].mlp->bias;
  (module.ends_with(".up") ? bias.up : bias.gate) = true;
  architecture.blocks = folded_blocks(blocks);
}

// A slim cache rebuilds keys from values less their bias (or values from keys): a constant in that bias is taken off
// again before the other sees it.
bool is_taken_off(const std::vector<Block>& blocks, const std::string& module) {
  if (!module.starts_with("blocks.")) {
    return false;
  }
  const CacheKind cache = blocks[std::stoul(module.substr(7))].attention.cache;
  return (cache == CacheKind::v && module.ends_with(".attention.value")) ||
         (cache == CacheKind::k && module.ends_with(".attention.key"));
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

std::vector<std::string> readers_without_bias(const Architecture& architecture, const Stream& stream) {
  std::map<std::string, Shape> stored;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    stored[spec.name] = spec.shape;
  }
  const std::vector<Block> blocks = expanded_blocks(architecture);
  std::vector<std::string> without;
  for (const Port& port : stream.ports) {
    if (port.role != Role::reader) {
      continue;
    }
    const Shape& shape = stored.at(port.tensor);
    if (shape.size() != 2 || port.tensor.ends_with(".bias")) {  // collapsed scores and values read both sides
      without.push_back(port.tensor);
    } else if (is_taken_off(blocks, module_of(port))) {
      without.push_back(module_of(port) + " under a slim cache");
    } else if (!has_bias_column(port, shape, stream.width) && !stored.contains(module_of(port) + ".bias")) {
      without.push_back(module_of(port));
    }
  }
  return without;
}

void shift_readers(Model& model, const Stream& stream, const Weight& constant) {
  std::set<std::string> stored;
  for (const TensorSpec& spec : tensor_table(model.architecture)) {
    stored.insert(spec.name);
  }
  for (const Port& port : stream.ports) {
    if (port.role != Role::reader) {
      continue;
    }
    const std::string bias = module_of(port) + ".bias";
    const int64_t width = stream.width;
    const bool column = model.has_weights() && has_bias_column(port, model.weights.at(port.tensor).shape(), width);
    if (!column && !stored.contains(bias) && bias.find(".mlp.") != std::string::npos &&
        (bias.ends_with(".up.bias") || bias.ends_with(".gate.bias"))) {
      create_mlp_bias(model.architecture, module_of(port));
    }
    if (!model.has_weights()) {
      continue;
    }
    const Weight matrix = model.weights.at(port.tensor);
    if (column) {
      const Formula sheared = Formula::enclosed("[I 0; ", constant.formula(), " 1]") * matrix.formula();
      model.weights[port.tensor] =
          computed(matrix.shape(), sheared, {matrix, constant}, [=](std::vector<at::Tensor>& in) {
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
