// The new model, of the mixture at t = 1: where every gain, constant and multiple goes.
//
// All of it scales rows and columns, p' = s p, and moves biases. The moments of an optimiser go the same ways with 1/s
// and 1/s², so one walk does all three: with s to the power 1, -1 or -2.

#include "pare/train/morph.h"

#include <ATen/ATen.h>

#include <cmath>

#include "pare/algebra/basis.h"
#include "pare/algebra/shift.h"
#include "pare/arch/streams.h"
#include "pare/support/error.h"

namespace pare {

struct Morph::Factors {
  std::map<ModuleId, at::Tensor> norms;  // gain times constant: a vector, or a scalar where there is no gain
  std::map<ModuleId, double> multiples;
  Weights biases;  // of the norms
};

namespace {

// A moment of what is multiplied by zero is of no use.
at::Tensor to_power(const at::Tensor& factors, double power) {
  return power == 1 ? factors : at::where(factors.abs() < 1e-12, at::zeros_like(factors), factors.pow(power));
}

Weight times(const Weight& weight, const at::Tensor& factors, int64_t axis) {
  at::Tensor shaped = factors;
  if (factors.dim() == 1) {
    Shape shape(weight.shape().size(), 1);
    shape[axis] = factors.size(0);
    shaped = factors.view(shape);
  }
  return computed(weight.shape(), "scaled", {weight}, [shaped](std::vector<at::Tensor>& in) { return in[0] * shaped; });
}

RowMap scaling(const at::Tensor& factors) {
  return {"f", {}, [factors](const at::Tensor& rows, const auto&) { return rows * factors; }};
}

const Stream& stream_at(const Streams& streams, TouchKind kind, const ModuleId& norm) {
  for (const Stream& stream : streams.all) {
    for (const Touch& touch : stream.touches) {
      if (touch.kind == kind && touch.module == norm) {
        return stream;
      }
    }
  }
  PARE_UNREACHABLE("a norm that stands nowhere");
}

void scale_ports(Weights& weights, const Stream& stream, const at::Tensor& factors) {
  for (const Port& port : stream.ports) {
    Weight& weight = weights.at(name_of(port.tensor));
    weight = mapped_along(weight, port, stream.width, scaling(factors));
  }
}

// A norm of each head's queries or keys, into the rows that make them.
void scale_rows(Weights& weights, const ModuleId& norm, const at::Tensor& factors) {
  const ModuleId module = in_attention(*norm.block, norm.slot == Slot::query_norm ? Slot::query : Slot::key);
  for (const TensorId& id : {weight_of(module), bias_of(module)}) {
    if (const auto found = weights.find(name_of(id)); found != weights.end()) {
      const int64_t heads = factors.dim() == 1 ? found->second.shape()[0] / factors.size(0) : 1;
      found->second = times(found->second, factors.dim() == 1 ? factors.repeat({heads}) : factors, 0);
    }
  }
}

bool has_port(const Stream& stream, Role role) {
  for (const Port& port : stream.ports) {
    if (port.role == role && port.tensor == weight_of(token_table)) {
      return true;
    }
  }
  return false;
}

// Into a tied table: the stream before the head takes a basis, and so does the table if it writes that stream.
void change_head_basis(Weights& weights, const Architecture& to, const at::Tensor& factors, double power) {
  const Streams streams = find_streams(to);
  for (size_t i = 0; i < streams.all.size(); ++i) {
    const Stream& stream = streams.all[i];
    if (!has_port(stream, Role::reader)) {
      continue;
    }
    const at::Tensor basis = has_port(stream, Role::writer) ? factors.sqrt() : factors;
    const Basis theta{.write = scaling(to_power(basis, power)), .read = scaling(to_power(1 / basis, power))};
    weights = change_basis({to, std::move(weights)}, streams, {{i, theta}}).weights;
    return;
  }
  PARE_UNREACHABLE("a head that reads nothing");
}

Weight first_neurons(const Weight& weight, int64_t axis, int64_t count) {
  Shape shape = weight.shape();
  shape[axis] = count;
  return Weight::made("first", weight.dtype(), shape, {weight},
                      [=](std::vector<at::Tensor>& in) { return in[0].narrow(axis, 0, count).contiguous(); });
}

void narrow_mlp(Weights& weights, int64_t block, int64_t count) {
  for (const Slot slot : {Slot::up, Slot::gate, Slot::down}) {
    for (const TensorId& id : {weight_of(in_mlp(block, slot)), bias_of(in_mlp(block, slot))}) {
      const bool column = slot == Slot::down, bias = id.kind == TensorKind::bias;
      if (const auto found = weights.find(name_of(id)); found != weights.end() && !(column && bias)) {
        found->second = first_neurons(found->second, column ? 1 : 0, count);
      }
    }
  }
}

// Only what an Architecture stores; its pivots have no moments.
Weights stored_in(const Architecture& architecture, const Weights& weights) {
  Weights stored;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    if (const auto found = weights.find(spec.name); found != weights.end()) {
      stored[spec.name] = found->second;
    } else {
      PARE_CHECK(spec.index, "nobody made " + spec.name);
    }
  }
  return stored;
}

Weights moments_of(const Weights& moments, const std::string& suffix) {
  Weights weights;
  for (const auto& [name, moment] : moments) {
    if (name.ends_with(suffix)) {
      weights[name.substr(0, name.size() - suffix.size())] = moment;
    }
  }
  return weights;
}

}  // namespace

Morph::Factors Morph::factors(const Weights& weights) const {
  Factors factors;
  for (const LeavingNorm& norm : plan_.norms) {
    const at::Tensor constant = blend_.norms.at(norm.module).constant.cpu();
    const auto gain = weights.find(name_of(weight_of(norm.module)));
    factors.norms[norm.module] =
        gain == weights.end() ? constant : constant * (load_double(gain->second) + norm.offset);
    if (const auto bias = weights.find(name_of(bias_of(norm.module))); bias != weights.end()) {
      factors.biases[name_of(norm.module)] = bias->second;
    }
  }
  for (const LeavingProjection& projection : plan_.projections) {
    factors.multiples[projection.module] = blend_.projections.at(projection.module).item<double>();
  }
  return factors;
}

Weights Morph::finished_weights(Weights weights, const Factors& factors, double power) const {
  const auto scale = [&](const TensorId& id, double factor) {
    if (const auto found = weights.find(name_of(id)); found != weights.end()) {
      found->second = times(found->second, at::scalar_tensor(std::pow(factor, power), at::kDouble), 0);
    }
  };
  for (const LeavingProjection& projection : plan_.projections) {
    const double multiple = factors.multiples.at(projection.module);
    weights.erase(name_of(weight_of(projection.module)));
    if (projection.module.slot != Slot::output) {  // whose bias is added to what its partner has scaled
      scale(bias_of(projection.module), 1 / multiple);
    }
    if (!projection.partner) {
      continue;  // the Architecture's scale has it
    }
    scale(weight_of(*projection.partner), multiple * projection.rescale);
    if (projection.module.slot != Slot::value) {  // the output's bias is added after
      scale(bias_of(*projection.partner), multiple * projection.rescale);
    }
  }
  for (const auto& [block, count] : plan_.neurons) {
    narrow_mlp(weights, block, count);
  }
  const Streams streams = find_streams(plan_.middle);
  for (const LeavingNorm& norm : plan_.norms) {
    const at::Tensor own = factors.norms.at(norm.module), factor = to_power(own, power);
    if (norm.exit == NormExit::readers) {
      const Stream& stream = stream_at(streams, TouchKind::norm_writes, norm.module);
      if (const auto bias = factors.biases.find(name_of(norm.module));
          power == 1 && bias != factors.biases.end() && !norm.bias_fades) {
        Model shifted{plan_.middle, std::move(weights)};
        shift_readers(shifted, stream, bias->second);
        weights = std::move(shifted.weights);
      }
      scale_ports(weights, stream, factor);
    } else if (norm.exit == NormExit::writers) {
      scale_ports(weights, stream_at(streams, TouchKind::norm_reads, norm.module), factor);
    } else if (norm.exit == NormExit::rows) {
      scale_rows(weights, norm.module, factor);
    } else {
      change_head_basis(weights, plan_.to, own, power);
    }
  }
  return stored_in(plan_.to, weights);
}

Model Morph::finished(const Weights& weights, at::ScalarType type) const {
  Model model{plan_.to, finished_weights(weights, factors(weights), 1)};
  for (const TensorSpec& spec : tensor_table(plan_.to)) {
    Weight& weight = model.weights.at(spec.name);
    if (spec.index) {
      continue;
    }
    const at::Tensor made = weight.load().to(type);  // computed once, in float64
    weight = Weight::leaf(spec.name, dtype_of(type), made.sizes().vec(), [made] { return made.clone(); });
  }
  return model;
}

Weights Morph::finished_moments(const Weights& weights, const Weights& moments) const {
  Weights result;
  const Factors own = factors(weights);
  for (const auto& [suffix, power] : {std::pair{".mean", -1.0}, {".square", -2.0}}) {
    for (const auto& [name, weight] : finished_weights(moments_of(moments, suffix), own, power)) {
      const at::Tensor made = weight.load();
      result[name + suffix] =
          Weight::leaf(name + suffix, weight.dtype(), weight.shape(), [made] { return made.clone(); });
    }
  }
  return result;
}

}  // namespace pare
