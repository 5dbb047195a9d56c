#include "pare/export/onnx_layers.h"

#include <ATen/ATen.h>

namespace pare {

OnnxName emit_norm(OnnxBuilder& b, const OnnxName& x, const std::optional<Norm>& norm, const ModuleId& module,
                   int64_t width) {
  if (!norm) {
    return x;
  }
  OnnxName gain = b.weight(weight_of(module), {.plus = norm->offset});
  const OnnxName bias = b.weight(bias_of(module));
  if (norm->kind == NormKind::dyt) {
    const OnnxName y = b.node("Tanh", {b.node("Mul", {x, b.weight({module, TensorKind::alpha})})});
    return b.plus(gain.empty() ? y : b.node("Mul", {y, gain}), bias);
  }
  if (gain.empty()) {  // both operators ask for one
    gain = b.constant(fmt::format("ones.{}", width), at::ones({width}, scalar_type(dtype_of(b.type()))));
  }
  if (norm->kind == NormKind::rms) {  // in the one form that onnxruntime knows as a norm
    const OnnxName y = b.wide(x), square = b.node("Pow", {y, b.wide_real(2)});
    const OnnxName mean = b.node("ReduceMean", {square, b.indices({-1})}, {{"keepdims", int64_t{1}}});
    const OnnxName root = b.node("Sqrt", {b.node("Add", {mean, b.wide_real(norm->epsilon)})});
    return b.plus(b.node("Mul", {b.narrow(b.node("Div", {y, root})), gain}), bias);
  }
  const std::vector<OnnxAttribute> settings = {{"axis", int64_t{-1}}, {"epsilon", b.setting(norm->epsilon)}};
  return b.node("LayerNormalization", bias.empty() ? std::vector{x, gain} : std::vector{x, gain, bias}, settings);
}

OnnxName emit_activation(OnnxBuilder& b, Activation activation, const OnnxName& x) {
  switch (activation) {
    case Activation::gelu:
      return b.node("Gelu", {x}, {{"approximate", "none"}});
    case Activation::gelu_tanh:
      return b.node("Gelu", {x}, {{"approximate", "tanh"}});
    case Activation::quick_gelu:
      return b.node("Mul", {x, b.node("Sigmoid", {b.node("Mul", {x, b.real(1.702)})})});
    case Activation::relu:
      return b.node("Relu", {x});
    case Activation::relu_squared: {
      const OnnxName y = b.node("Relu", {x});
      return b.node("Mul", {y, y});
    }
    case Activation::silu:
      return b.node("Mul", {x, b.node("Sigmoid", {x})});
    case Activation::sigmoid:
      return b.node("Sigmoid", {x});
    case Activation::tanh:
      return b.node("Tanh", {x});
    case Activation::identity:
      return x;
    case Activation::gelu_bloom:
    case Activation::xielu:  // refused before
      break;
  }
  PARE_UNREACHABLE("an activation nobody computes");
}

static OnnxName emit_mlp_kind(OnnxBuilder& b, const OnnxName& x, const DenseMlp& mlp, int64_t block) {
  const OnnxName up = b.linear(x, in_mlp(block, Slot::up));
  if (!mlp.gated) {
    return b.linear(emit_activation(b, mlp.activation, up), in_mlp(block, Slot::down));
  }
  const OnnxName gate = b.linear(x, in_mlp(block, Slot::gate));
  return b.linear(b.node("Mul", {emit_activation(b, mlp.activation, gate), up}), in_mlp(block, Slot::down));
}

// A softmax over the token's own score and 0 is a sigmoid. The last column of a matrix is what x̂ = [x, 1] makes a bias.
static OnnxName emit_mlp_kind(OnnxBuilder& b, const OnnxName& x, const NeuronHeads& mlp, int64_t block) {
  const int64_t width = b.architecture().width;
  const auto extended = [&](Slot slot) {
    const TensorId id = weight_of(in_mlp(block, slot));
    const OnnxName matrix = b.weight(id, {.transposed = true, .begin = 0, .end = width});
    const OnnxName last =
        b.weight(id, {.shape = {mlp.width}, .begin = width, .end = width + 1, .suffix = ".last_column"});
    return b.plus(b.node("MatMul", {x, matrix}), last);
  };
  const OnnxName self = extended(Slot::query);
  const OnnxName value = mlp.shared_value ? self : extended(Slot::value);
  return b.linear(b.node("Mul", {b.node("Sigmoid", {self}), value}), in_mlp(block, Slot::output));
}

OnnxName emit_mlp(OnnxBuilder& b, const OnnxName& x, const Mlp& mlp, int64_t block) {
  return std::visit([&](const auto& kind) { return emit_mlp_kind(b, x, kind, block); }, mlp.kind);
}

OnnxName emit_block(OnnxBuilder& b, OnnxStep& step, const OnnxName& x, const OnnxName& table, int64_t block,
                    int64_t layer) {
  const Block& spec = b.architecture().blocks[block];
  const Attention& t = spec.attention;
  const int64_t width = b.architecture().width;
  const auto at = [](const std::optional<Norm>& norm, NormPlace place) {
    return norm && norm->place == place ? norm : std::nullopt;
  };
  const std::string attention = fmt::format("blocks.{}.attention", layer), mlp = fmt::format("blocks.{}.mlp", layer);

  b.enter(attention);
  const std::optional<Norm> before =
      table.empty() ? at(t.norm, NormPlace::pre) : std::nullopt;  // else it is in the table
  const OnnxName input = emit_norm(b, x, before, in_attention(block, Slot::norm), width);
  const OnnxName attended = emit_norm(b, emit_attention(b, step, input, table, block, layer), t.output_norm,
                                      in_attention(block, Slot::output_norm), width);
  const OnnxName sum = t.skip ? b.node("Add", {x, attended}) : attended;
  const auto written = [&](const OnnxName& read) {
    b.enter(mlp);
    return emit_norm(b, emit_mlp(b, read, *spec.mlp, block), spec.mlp->output_norm, in_mlp(block, Slot::output_norm),
                     width);
  };
  if (spec.wiring == Wiring::parallel) {
    if (!spec.mlp) {
      return sum;
    }
    b.enter(mlp);
    const OnnxName read = spec.mlp->norm ? emit_norm(b, x, spec.mlp->norm, in_mlp(block, Slot::norm), width) : input;
    return b.node("Add", {sum, written(read)});
  }
  const OnnxName middle = emit_norm(b, sum, at(t.norm, NormPlace::post), in_attention(block, Slot::norm), width);
  if (!spec.mlp) {
    return middle;
  }
  b.enter(mlp);
  const ModuleId norm = in_mlp(block, Slot::norm);
  const OnnxName y = written(emit_norm(b, middle, at(spec.mlp->norm, NormPlace::pre), norm, width));
  return emit_norm(b, spec.mlp->skip ? b.node("Add", {middle, y}) : y, at(spec.mlp->norm, NormPlace::post), norm,
                   width);
}

}  // namespace pare
