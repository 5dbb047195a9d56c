// MLPs in other forms: neurons as heads, and a skip that the neurons took in.

#include "pare/proof/plain_form.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "pare/arch/mlp.h"
#include "pare/model/activation.h"
#include "pare/proof/model_view.h"
#include "pare/proof/stream_map.h"

namespace pare {

namespace {

struct MlpTensors {
  TensorId up, up_bias, gate, gate_bias, down, down_bias, query, value, output, output_bias;
};

MlpTensors mlp_tensors(int64_t n) {
  const auto module = [n](Slot slot) { return in_mlp(n, slot); };
  return {weight_of(module(Slot::up)),    bias_of(module(Slot::up)),      weight_of(module(Slot::gate)),
          bias_of(module(Slot::gate)),    weight_of(module(Slot::down)),  bias_of(module(Slot::down)),
          weight_of(module(Slot::query)), weight_of(module(Slot::value)), weight_of(module(Slot::output)),
          bias_of(module(Slot::output))};
}

Mlp& mlp_of(PlainForm& form, int64_t block) {
  return *form.architecture.blocks[block].mlp;
}

// ---- neurons as heads: σ(x̂ q)(x̂ u) w, which is a GLU whose gate has a sigmoid

void write_out_heads(PlainForm& form, int64_t n, const NeuronHeads heads) {
  const MlpTensors ids = mlp_tensors(n);
  const int64_t width = form.architecture.width;
  const auto split = [&](const TensorId& from, const TensorId& weight, const TensorId& bias) {
    const LoadRounded whole = current(form, from);
    make(form, weight, {from}, [=](const ModelView& side) { return narrowed(whole(side), 1, 0, width); });
    make(form, bias, {from}, [=](const ModelView& side) { return reshaped(narrowed(whole(side), 1, width, 1), {-1}); });
  };
  split(ids.query, ids.gate, ids.gate_bias);
  split(heads.shared_value ? ids.query : ids.value, ids.up, ids.up_bias);
  make(form, ids.down, {ids.output}, current(form, ids.output));
  if (heads.output_bias) {
    make(form, ids.down_bias, {ids.output_bias}, current(form, ids.output_bias));
  }
  mlp_of(form, n).kind = DenseMlp{.width = heads.width,
                                  .activation = Activation::sigmoid,
                                  .gated = true,
                                  .bias = {.up = true, .gate = true, .down = heads.output_bias}};
}

// The c of an activation x σ(c x).
std::optional<double> sigmoid_slope(const DenseMlp& mlp) {
  if (mlp.gated || (mlp.activation != Activation::silu && mlp.activation != Activation::quick_gelu)) {
    return std::nullopt;
  }
  return mlp.activation == Activation::silu ? 1 : 1.702;
}

// w x σ(c w x) as the same GLU; where the heads share query and value, σ(c w x) (c w x) with the output divided by c.
void write_out_neurons(PlainForm& form, int64_t n, DenseMlp& mlp, double slope, bool shared) {
  const MlpTensors ids = mlp_tensors(n);
  const auto scaled = [&](const TensorId& id, const TensorId& from, const LoadRounded& load, double factor) {
    make(form, id, {from}, [=](const ModelView& side) { return factor == 1 ? load(side) : times(load(side), factor); });
  };
  const double own = shared ? slope : 1;
  const LoadRounded up = current(form, ids.up), bias = current(form, ids.up_bias), down = current(form, ids.down);
  scaled(ids.gate, ids.up, up, slope);
  scaled(ids.up, ids.up, up, own);
  if (mlp.bias.up) {
    scaled(ids.gate_bias, ids.up_bias, bias, slope);
    scaled(ids.up_bias, ids.up_bias, bias, own);
  }
  scaled(ids.down, ids.down, down, 1 / own);
  mlp.activation = Activation::sigmoid;
  mlp.gated = true;
  mlp.bias.gate = mlp.bias.up;
}

bool is_seen_as_heads(const DenseMlp& mlp) {
  return (mlp.gated && mlp.activation == Activation::sigmoid) || sigmoid_slope(mlp);
}

// Of heads in one and neurons in the other; other pairs stay as they are.
void write_out_kind(PlainForm& with_heads, PlainForm& with_neurons, int64_t n) {
  const NeuronHeads* heads = std::get_if<NeuronHeads>(&mlp_of(with_heads, n).kind);
  DenseMlp* neurons = std::get_if<DenseMlp>(&mlp_of(with_neurons, n).kind);
  if (!heads || !neurons || !is_seen_as_heads(*neurons)) {
    return;
  }
  const bool shared = heads->shared_value;
  write_out_heads(with_heads, n, *heads);
  if (const std::optional<double> slope = sigmoid_slope(*neurons)) {
    write_out_neurons(with_neurons, n, *neurons, *slope, shared);
  }
}

// ---- a skip that the neurons took in

bool may_be_one_kind(const DenseMlp& mine, const DenseMlp& other) {
  return mine.gated == other.gated && mine.activation == other.activation;
}
bool may_be_one_kind(const DenseMlp& mine, const NeuronHeads&) {
  return is_seen_as_heads(mine);
}

// Neurons that read and write the stream itself (a norm behind the sum sees no difference), of one kind or seen as
// heads by the other, and only one of the two adds its input: the neurons of that one, or none. Gated ones take it in
// by neurons of their own only.
DenseMlp* neurons_beside_a_skip(Block& with, const Block& without) {
  if (!with.mlp || !without.mlp || with.wiring != Wiring::serial || without.wiring != Wiring::serial) {
    return nullptr;
  }
  const auto on_the_stream = [](const Mlp& m) {
    return (!m.norm || m.norm->place == NormPlace::post) && !m.output_norm;
  };
  Mlp& m = *with.mlp;
  const Mlp& o = *without.mlp;
  DenseMlp* mine = std::get_if<DenseMlp>(&m.kind);
  if (!mine || !m.skip || o.skip || !on_the_stream(m) || !on_the_stream(o) ||
      !(mine->gated || has_linear_odd_part(mine->activation))) {
    return nullptr;
  }
  return std::visit([&](const auto& kind) { return may_be_one_kind(*mine, kind); }, o.kind) ? mine : nullptr;
}

struct Neurons {
  at::Tensor up, down;  // [f, d], [d, f]
};

at::Tensor mlp_matrix(const Model& model, int64_t n, Slot slot, at::Device device) {
  return model.weights.at(name_of(weight_of(in_mlp(n, slot)))).load().to(device, at::kDouble);
}

Neurons neurons_of(const Model& model, int64_t n, at::Device device) {
  return {mlp_matrix(model, n, Slot::up, device), mlp_matrix(model, n, Slot::down, device)};
}

// What each neuron reads, up to a factor that is positive.
at::Tensor rows_read(const DenseMlp&, const Model& model, int64_t n, at::Device device) {
  return mlp_matrix(model, n, Slot::up, device);
}
at::Tensor rows_read(const NeuronHeads& heads, const Model& model, int64_t n, at::Device device) {
  const at::Tensor all = mlp_matrix(model, n, heads.shared_value ? Slot::query : Slot::value, device);
  return all.narrow(1, 0, model.architecture.width);
}

int64_t neuron_count(const Mlp& mlp) {
  return std::visit([](const auto& kind) { return kind.width; }, mlp.kind);
}

// -1 for each neuron that the other side has with the opposite sign, 1 for the others; undefined where they are no
// such.
at::Tensor signs_by_rows(const at::Tensor& up, const at::Tensor& other) {
  const at::Tensor inner = (up * other).sum(1), sizes = up.norm(2, {1}) * other.norm(2, {1});
  const at::Tensor alike = inner.abs() >= 0.99 * sizes;
  return alike.all().item<bool>() ? at::where(inner < 0, -1.0, 1.0) : at::Tensor();
}

// W₂ diag(s) W₁ = -I has at most one s where no two neurons read and write alike: least squares tell it.
at::Tensor signs_by_equation(const Neurons& of) {
  const at::Tensor gram = at::matmul(of.down.t(), of.down) * at::matmul(of.up, of.up.t());
  const at::Tensor right = -(of.down.t() * of.up).sum(1);
  const auto [solved, info] = at::linalg_solve_ex(gram, right.unsqueeze(1));
  const at::Tensor s = solved.squeeze(1);
  constexpr double near = 1e-2;
  const at::Tensor whole = at::round(s);
  const bool is_set = info.item<int64_t>() == 0 && ((s - whole).abs() < near).all().item<bool>() &&
                      ((whole == 0) | (whole == 1)).all().item<bool>();
  return is_set ? 1 - 2 * whole : at::Tensor();
}

Rounded rounded_as_stored(const Model& model, const TensorId& id, const at::Tensor& value) {
  return {value, half_spacing(value.contiguous(), model.weights.at(name_of(id)).dtype())};
}

// Neurons J with the opposite sign, -W₂ Π W₁ in place of the skip and W₂ Π b₁ in the bias behind.
void flip_neurons(PlainForms& forms, PlainForm& form, const Model& model, int64_t n, DenseMlp& mlp, const Neurons& own,
                  const at::Tensor& signs) {
  const MlpTensors ids = mlp_tensors(n);
  const LoadRounded up = current(form, ids.up), bias = current(form, ids.up_bias), down = current(form, ids.down),
                    down_bias = current(form, ids.down_bias);
  const int64_t width = form.architecture.width;
  const MlpBias had = mlp.bias;
  make(form, ids.up, {ids.up}, [=](const ModelView& side) {
    const Rounded rows = up(side);
    return Rounded{rows.value * signs.unsqueeze(1), rows.rounding};
  });
  if (had.up) {
    make(form, ids.up_bias, {ids.up_bias}, [=](const ModelView& side) {
      const Rounded b = bias(side);
      return Rounded{b.value * signs, b.rounding};
    });
    const std::vector<TensorId> parts =
        had.down ? std::vector{ids.down_bias, ids.down, ids.up_bias} : std::vector{ids.down, ids.up_bias};
    make(form, ids.down_bias, parts, [=](const ModelView& side) {
      const Rounded flipped = bias(side);
      const at::Tensor chosen = (1 - signs) / 2;
      const Rounded moved = times_vector(down(side), {flipped.value * chosen, flipped.rounding * chosen});
      return had.down ? sum(down_bias(side), moved) : moved;
    });
    mlp.bias.down = true;
  }
  mlp_of(form, n).skip = false;
  // The premise, to one rounding of what is stored, and to what is lost where somebody solved for W₂ or W₁. Each row of
  // a solution by orthogonal factors solves equations whose columns c_j were moved by a few u |c_j| (Higham 2002,
  // chapter 21), so an entry of the product is off by that times the length of its row: lengths, not a product of
  // sizes.
  const at::Tensor chosen = ((1 - signs) / 2).unsqueeze(0);
  const Rounded w1 = rounded_as_stored(model, ids.up, own.up);
  const Rounded w2{own.down * chosen,
                   half_spacing(own.down.contiguous(), model.weights.at(name_of(ids.down)).dtype()) * chosen};
  const Rounded both = product(w2, w1);
  const at::Tensor read = (w1.value * chosen.t()).norm(2, {0}, true), wrote = w2.value.norm(2, {1}, true);
  const at::Tensor lost = wrote * read * lost_in_solving;
  const auto unit = [&](const TensorId& id) { return unit_roundoff(model.weights.at(name_of(id)).dtype()); };
  forms.premises.push_back({ids.down,
                            {ids.up, ids.down},
                            {both.value, lost},
                            {-at::eye(width, both.value.options()), both.rounding},
                            std::max(unit(ids.up), unit(ids.down))});
}

// `more` behind what is there, along an axis: numbers that are exact, or computed in float64 with such an error.
void append(PlainForm& form, const TensorId& id, int64_t axis, const at::Tensor& more, double lost = 0) {
  const LoadRounded old = current(form, id);
  make(form, id, {id}, [=](const ModelView& side) {
    const Rounded own = old(side);
    const at::Tensor beside = more.to(own.value.device());
    return joined({own, {beside, beside.abs() * lost}}, axis);
  });
}

// The skip as neurons: x = α(x) - α(-x).
void widen(PlainForm& form, int64_t n, DenseMlp& mlp) {
  const MlpTensors ids = mlp_tensors(n);
  const int64_t width = form.architecture.width;
  const at::Tensor eye = at::eye(width, at::kDouble);
  append(form, ids.up, 0, at::cat({eye, -eye}));
  append(form, ids.down, 1, at::cat({eye, -eye}, 1));
  if (mlp.bias.up) {
    append(form, ids.up_bias, 0, at::zeros({2 * width}, at::kDouble));
  }
  mlp.width += 2 * width;
  mlp_of(form, n).skip = false;
}

// What holds gates open in a model: the bias of those that read nothing, where it is one for all of them. pare's own
// where there are no such gates, or what they let through is nothing.
OpenGate gates_held_open(const Model& model, int64_t n, Activation activation, at::Device device) {
  const OpenGate usual = open_gate(activation);
  const auto bias = model.weights.find(name_of(bias_of(in_mlp(n, Slot::gate))));
  if (bias == model.weights.end()) {
    return usual;
  }
  const at::Tensor reads_nothing = mlp_matrix(model, n, Slot::gate, device).eq(0).all(1);
  const at::Tensor held = bias->second.load().to(device, at::kDouble).masked_select(reads_nothing);
  if (held.numel() == 0 || !held.eq(held[0]).all().item<bool>()) {
    return usual;
  }
  const OpenGate found{held[0].item<double>(), activate(activation, held[0]).item<double>()};
  return std::abs(found.value) > 0x1p-40 && std::abs(found.value) < 0x1p40 ? found : usual;
}

// The skip as neurons whose gate a constant holds open: x = α(c) x / α(c). Others may have chosen another c, which they
// rounded, and scaled what these neurons read and write, as of any neuron.
void widen_gated(PlainForm& form, const OpenGate& open, int64_t n, DenseMlp& mlp) {
  const MlpTensors ids = mlp_tensors(n);
  const int64_t width = form.architecture.width, before = mlp.width;
  const at::Tensor eye = at::eye(width, at::kDouble), held_open = at::full({width}, open.at, at::kDouble);
  append(form, ids.up, 0, eye / open.value, open.at == open_gate(mlp.activation).at ? 0 : lost_in_solving);
  append(form, ids.gate, 0, at::zeros_like(eye));
  append(form, ids.down, 1, eye);
  if (mlp.bias.up) {
    append(form, ids.up_bias, 0, at::zeros({width}, at::kDouble));
  }
  if (mlp.bias.gate) {
    append(form, ids.gate_bias, 0, held_open);
  } else if (open.at != 0) {
    make(form, ids.gate_bias, {ids.gate}, [=](const ModelView& side) {
      return side.made(at::cat({at::zeros({before}, at::kDouble), held_open}));
    });
    mlp.bias.gate = true;
  }
  mlp.width += width;
  mlp_of(form, n).skip = false;
}

void absorb(PlainForms& forms, PlainForm& form, const Model& with, const Model& without, int64_t n, DenseMlp& mlp,
            at::Device device) {
  PlainForm& other = &form == &forms.reference ? forms.candidate : forms.reference;
  const int64_t mine = mlp.width, theirs = neuron_count(mlp_of(other, n));
  if (mlp.gated) {
    if (theirs == mine + form.architecture.width) {
      widen_gated(form, gates_held_open(without, n, mlp.activation, device), n, mlp);
    }
    return;
  }
  if (theirs == mine + 2 * form.architecture.width) {
    widen(form, n, mlp);
    return;
  }
  if (theirs != mine) {
    return;
  }
  // The premise is about the matrices as they are stored. With a norm in them they are others.
  const MlpTensors ids = mlp_tensors(n);
  if (form.made.contains(ids.up) || form.made.contains(ids.down)) {
    return;
  }
  const Neurons own = neurons_of(with, n, device);
  const Mlp& others = *without.architecture.blocks[n].mlp;
  at::Tensor signs = signs_by_rows(
      own.up, std::visit([&](const auto& kind) { return rows_read(kind, without, n, device); }, others.kind));
  signs = signs.defined() ? signs : signs_by_equation(own);
  if (signs.defined()) {
    flip_neurons(forms, form, with, n, mlp, own, signs);
  }
}

}  // namespace

void write_out_mlps(PlainForms& forms, const Model& reference, const Model& candidate, at::Device device) {
  PlainForm &a = forms.reference, &b = forms.candidate;
  for (int64_t n = 0; n < std::ssize(a.architecture.blocks); ++n) {
    Block &first = a.architecture.blocks[n], &second = b.architecture.blocks[n];
    if (!first.mlp || !second.mlp) {
      continue;
    }
    if (DenseMlp* neurons = neurons_beside_a_skip(first, second)) {
      absorb(forms, a, reference, candidate, n, *neurons, device);
    } else if (DenseMlp* others = neurons_beside_a_skip(second, first)) {
      absorb(forms, b, candidate, reference, n, *others, device);
    }
    write_out_kind(a, b, n);
    write_out_kind(b, a, n);
  }
}

}  // namespace pare
