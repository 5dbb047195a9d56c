#include "pare/arch/mlp.h"

#include "pare/arch/slots.h"
#include "pare/arch/sublayer.h"
#include "pare/arch/words.h"
#include "pare/support/error.h"

namespace pare {

// ---- as JSON

enum class MlpWord { dense, heads };  // in the order of Mlp::kind
static Words<MlpWord> words(MlpWord) {
  return {{MlpWord::dense, "dense"}, {MlpWord::heads, "heads"}};
}

template <class Io>
static void describe(Io& io, MlpBias& b) {
  io.optional("up", b.up, false);
  io.optional("gate", b.gate, false);
  io.optional("down", b.down, false);
}

template <class Io>
static void fields_of(Io& io, DenseMlp& m) {
  io.required("width", m.width);
  io.required("activation", m.activation);
  io.optional("gated", m.gated, false);
  io.optional("bias", m.bias, MlpBias{});
}

template <class Io>
static void fields_of(Io& io, NeuronHeads& m) {
  MlpBias bias{.down = m.output_bias};
  io.required("width", m.width);
  io.optional("shared_value", m.shared_value, false);
  io.optional("bias", bias, MlpBias{});
  if (bias.up) {
    io.contradiction("bias.up", "a neuron head has its bias in the last column of query");
  }
  if (bias.gate) {
    io.contradiction("bias.gate", "there is no gate");
  }
  m.output_bias = bias.down;
}

template <class Io>
static void fields(Io& io, Mlp& m) {
  MlpWord kind = static_cast<MlpWord>(m.kind.index());
  io.optional("kind", kind, MlpWord::dense);
  switch (kind) {
    case MlpWord::dense:
      fields_of(io, io.template chosen<DenseMlp>(m.kind));
      break;
    case MlpWord::heads:
      fields_of(io, io.template chosen<NeuronHeads>(m.kind));
      break;
  }
  io.nullable("norm", m.norm);
  io.nullable("output_norm", m.output_norm);
  io.optional("skip", m.skip, true);
}

void describe(JsonReader& io, Mlp& mlp) {
  fields(io, mlp);
}
void describe(JsonWriter& io, Mlp& mlp) {
  fields(io, mlp);
}

// ---- its rules

static void check_kind(Rules& rules, const std::string& path, const DenseMlp& m) {
  rules.in_range(path + "width", m.width);
  rules.require(m.gated || !m.bias.gate, path + "bias.gate", "there is no gate");
  rules.require(!m.gated || m.activation != Activation::xielu, path + "activation", "xielu is not for gates");
}

static void check_kind(Rules& rules, const std::string& path, const NeuronHeads& m) {
  rules.in_range(path + "width", m.width);
}

void check_mlp(Rules& rules, const std::string& path, const Block& block) {
  const Mlp& m = *block.mlp;
  std::visit([&](const auto& kind) { check_kind(rules, path, kind); }, m.kind);
  check_norm(rules, path + "norm", m.norm, block.wiring == Wiring::serial);
  check_norm(rules, path + "output_norm", m.output_norm, false);
}

// ---- what it stores

static void add_slots(Slots& slots, const DenseMlp& m, int64_t block, int64_t width) {
  const ModuleId up = in_mlp(block, Slot::up), gate = in_mlp(block, Slot::gate), down = in_mlp(block, Slot::down);
  slots.add(weight_of(up), {m.width, width}, Part::mlp, {reads(Point::mlp_input)});
  slots.add_bias(m.bias.up, up, m.width);
  if (m.gated) {
    slots.add(weight_of(gate), {m.width, width}, Part::mlp, {reads(Point::mlp_input)});
    slots.add_bias(m.bias.gate, gate, m.width);
  }
  if (m.activation == Activation::xielu) {  // as Apertus starts them
    const auto curve = [&](Slot slot, double initial) {
      slots.add({in_mlp(block, slot), TensorKind::whole}, {1}, Part::mlp, {}, initial);
    };
    curve(Slot::curve_positive, 0.8125);
    curve(Slot::curve_negative, 0.8125);
    curve(Slot::curve_slope, 0.5);
    curve(Slot::curve_least, -1e-6);
  }
  slots.add(weight_of(down), {width, m.width}, Part::mlp, {writes(Point::mlp_output)});
  slots.add_bias(m.bias.down, down, width, {writes(Point::mlp_output)});
}

// [width of the heads, width + 1]: the last column is the bias.
static void add_slots(Slots& slots, const NeuronHeads& m, int64_t block, int64_t width) {
  slots.add(weight_of(in_mlp(block, Slot::query)), {m.width, width + 1}, Part::mlp, {reads(Point::mlp_input)});
  if (!m.shared_value) {
    slots.add(weight_of(in_mlp(block, Slot::value)), {m.width, width + 1}, Part::mlp, {reads(Point::mlp_input)});
  }
  const ModuleId output = in_mlp(block, Slot::output);
  slots.add(weight_of(output), {width, m.width}, Part::mlp, {writes(Point::mlp_output)});
  slots.add_bias(m.output_bias, output, width, {writes(Point::mlp_output)});
}

void add_mlp_slots(Slots& slots, const Architecture& a, int64_t block) {
  const Mlp& m = *a.blocks[block].mlp;
  slots.add_norm(m.norm, in_mlp(block, Slot::norm), {a.width});
  std::visit([&](const auto& kind) { add_slots(slots, kind, block, a.width); }, m.kind);
  slots.add_norm(m.output_norm, in_mlp(block, Slot::output_norm), {a.width});
}

// ---- what is asked of any kind

static const char* words_for(const DenseMlp&) {
  return "a dense MLP";
}
static const char* words_for(const NeuronHeads&) {
  return "neuron heads";
}

static NeuronFacts neurons(const DenseMlp& m) {
  NeuronFacts found{.count = m.width};
  if (m.gated) {
    found.factors.push_back({.slot = Slot::up});
  }
  const Slot before_activation = m.gated ? Slot::gate : Slot::up;
  switch (m.activation) {
    case Activation::identity:
      found.factors.push_back({.slot = before_activation});
      found.linear = !m.gated;
      break;
    case Activation::relu:
      found.factors.push_back({.slot = before_activation, .any_sign = false});
      found.switches = true;
      break;
    case Activation::relu_squared:
      found.factors.push_back({.slot = before_activation, .power = 2, .any_sign = false});
      found.switches = true;
      break;
    default:
      break;
  }
  return found;
}
static NeuronFacts neurons(const NeuronHeads& m) {
  NeuronFacts found{.count = m.width};
  if (!m.shared_value) {
    found.factors.push_back({.slot = Slot::value});
  }
  return found;
}

static std::vector<MlpSetting> settings(const DenseMlp& m) {
  return {{"activation", word_of(m.activation)}, {"gated", m.gated ? "true" : "false"}};
}
static std::vector<MlpSetting> settings(const NeuronHeads&) {
  return {};  // a shared value may be stored twice
}

static bool* flag(DenseMlp& m, Slot slot) {
  return slot == Slot::up     ? &m.bias.up
         : slot == Slot::gate ? &m.bias.gate
         : slot == Slot::down ? &m.bias.down
                              : nullptr;
}
static bool* flag(NeuronHeads& m, Slot slot) {
  return slot == Slot::output ? &m.output_bias : nullptr;
}

const char* kind_of(const Mlp& mlp) {
  return std::visit([](const auto& kind) { return words_for(kind); }, mlp.kind);
}
NeuronFacts neurons_of(const Mlp& mlp) {
  return std::visit([](const auto& kind) { return neurons(kind); }, mlp.kind);
}
std::vector<MlpSetting> fixed_settings(const Mlp& mlp) {
  return std::visit([](const auto& kind) { return settings(kind); }, mlp.kind);
}
bool* bias_flag(Mlp& mlp, Slot slot) {
  return std::visit([slot](auto& kind) { return flag(kind, slot); }, mlp.kind);
}

bool has_linear_odd_part(Activation activation) {
  switch (activation) {
    case Activation::relu:
    case Activation::gelu:
    case Activation::gelu_tanh:
    case Activation::gelu_bloom:
    case Activation::quick_gelu:
    case Activation::silu:
      return true;
    default:
      return false;
  }
}

OpenGate open_gate(Activation activation) {
  switch (activation) {
    case Activation::gelu:
    case Activation::gelu_tanh:
    case Activation::gelu_bloom:
      return {16, 16};  // z Φ(z), or z times what is nearer to 1, and 1 - Φ(16) < 2⁻¹⁸⁹
    case Activation::quick_gelu:
      return {32, 32};  // z σ(1.702 z), and 1 - σ(1.702 · 32) < 2⁻⁷⁸
    case Activation::silu:
      return {64, 64};  // z σ(z), and 1 - σ(64) < 2⁻⁹²
    case Activation::tanh:
      return {32, 1};  // 1 - tanh(32) < 2⁻⁹¹
    case Activation::sigmoid:
      return {0, 0.5};  // needs no bias
    case Activation::relu:
    case Activation::relu_squared:
    case Activation::identity:
    case Activation::xielu:  // no gate has it
      return {1, 1};
  }
  PARE_UNREACHABLE("an activation nobody can hold open");
}

}  // namespace pare
