#include "pare/model/mlp.h"

#include <ATen/ATen.h>

namespace pare {

namespace {

DenseMlpLayer load(Loader& loader, const DenseMlp& spec, int64_t block) {
  DenseMlpLayer layer{.spec = spec, .down = loader.linear(in_mlp(block, Slot::down))};
  if (spec.gated) {
    layer.gate_up = loader.stacked({in_mlp(block, Slot::gate), in_mlp(block, Slot::up)});
  } else {
    layer.up = loader.linear(in_mlp(block, Slot::up));
  }
  if (spec.activation == Activation::xielu) {
    const auto curve = [&](Slot slot) { return loader.tensor({in_mlp(block, slot), TensorKind::whole}); };
    layer.curve = {curve(Slot::curve_positive), curve(Slot::curve_negative), curve(Slot::curve_slope),
                   curve(Slot::curve_least)};
  }
  return layer;
}

at::Tensor run(const DenseMlpLayer& layer, const at::Tensor& x, Step& step, const std::string& prefix) {
  if (!layer.spec.gated) {
    const at::Tensor up = step.tap(prefix, "up", layer.up(x));
    const at::Tensor hidden =
        layer.spec.activation == Activation::xielu ? xielu(layer.curve, up) : activate(layer.spec.activation, up);
    return layer.down(step.tap(prefix, "hidden", hidden));
  }
  const std::vector<at::Tensor> both = layer.gate_up(x).split(layer.spec.width, -1);
  const at::Tensor up = step.tap(prefix, "up", both[1]), gate = step.tap(prefix, "gate", both[0]);
  return layer.down(step.tap(prefix, "hidden", activate(layer.spec.activation, gate) * up));
}

NeuronHeadsLayer load(Loader& loader, const NeuronHeads& spec, int64_t block) {
  return {.spec = spec,
          .query = loader.linear(in_mlp(block, Slot::query)),
          .value = loader.linear(in_mlp(block, Slot::value)),
          .output = loader.linear(in_mlp(block, Slot::output))};
}

// Head i scores x̂ q_i on the token itself and 0 on the extra token, whose value is zero: softmax over the two.
at::Tensor run(const NeuronHeadsLayer& layer, const at::Tensor& x, Step& step, const std::string& prefix) {
  const at::Tensor extended = at::cat({x, at::ones_like(x.narrow(-1, 0, 1))}, -1);  // x̂ = [x, 1]
  const at::Tensor self = layer.query(extended);
  const at::Tensor value = layer.spec.shared_value ? self : layer.value(extended);
  at::Tensor probabilities = at::softmax(at::stack({self, at::zeros_like(self)}, -1), -1);
  probabilities = step.tap(prefix, "probabilities", probabilities);  // [batch, tokens, heads, 2]
  return layer.output(step.tap(prefix, "hidden", probabilities.select(-1, 0) * value));
}

const Linear& writer(const DenseMlpLayer& layer) {
  return layer.down;
}
const Linear& writer(const NeuronHeadsLayer& layer) {
  return layer.output;
}

}  // namespace

const Linear& written_by(const MlpLayer& layer) {
  return std::visit([](const auto& kind) -> const Linear& { return writer(kind); }, layer);
}

MlpLayer load_mlp(Loader& loader, const Mlp& spec, int64_t block) {
  return std::visit([&](const auto& kind) -> MlpLayer { return load(loader, kind, block); }, spec.kind);
}

at::Tensor run_mlp(const MlpLayer& layer, const at::Tensor& x, Step& step, const std::string& prefix) {
  return std::visit([&](const auto& kind) { return run(kind, x, step, prefix); }, layer);
}

}  // namespace pare
