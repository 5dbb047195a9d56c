#include "pare/train/morph.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "pare/algebra/basis.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr double slowest_pace = 0.1;    // about the last ten steps
constexpr double smallest_gain = 1e-3;  // of a norm whose gain the token table takes: its root is divided by

at::Tensor scalar_on(at::Device device, double value) {
  return at::full({}, value, at::TensorOptions(at::kDouble).device(device));
}

std::string constant_name(const ModuleId& module) {
  return "morph." + name_of(module) + ".constant";
}

// Of a small file anything may be the first tensor, pivots too.
at::ScalarType type_of_weights(const Architecture& architecture, const Weights& weights) {
  for (const TensorSpec& spec : tensor_table(architecture)) {
    if (const auto found = weights.find(spec.name); found != weights.end() && !spec.index) {
      return scalar_type(found->second.dtype());
    }
  }
  return at::kFloat;
}

// As long as the matrix makes an average input.
double usual_length(const at::Tensor& matrix) {
  return (matrix.norm() / std::sqrt(static_cast<double>(matrix.size(0)))).item<double>();
}

void check_positive(const MorphPlan& plan, const Model& start) {
  for (const LeavingNorm& norm : plan.norms) {
    const auto gain = start.weights.find(name_of(weight_of(norm.module)));
    if (norm.exit != NormExit::table || gain == start.weights.end()) {
      continue;
    }
    const at::Tensor factors = load_double(gain->second) + norm.offset;
    const int64_t bad = (factors < smallest_gain).sum().item<int64_t>();
    refuse_if(bad > 0,
              "morph.to: {} of {} gains of {} are not positive, and the token table, to which the "
              "head is tied, would take their roots: untie the head (morph.to.head.tied=false)",
              bad, factors.size(0), name_of(norm.module));
  }
}

// The neurons that do most come first: those whose rows and columns are longest.
void sort_neurons(Model& model, int64_t block) {
  const auto rows = [block](Slot slot) { return name_of(weight_of(in_mlp(block, slot))); };
  at::Tensor size = load_double(model.weights.at(rows(Slot::up))).norm(2, 1) *
                    load_double(model.weights.at(rows(Slot::down))).norm(2, 0);
  if (model.weights.contains(rows(Slot::gate))) {
    size = size * load_double(model.weights.at(rows(Slot::gate))).norm(2, 1);
  }
  const at::Tensor order = at::argsort(size, /*stable=*/true, 0, /*descending=*/true);
  const auto sorted = [&](const std::string& name, int64_t axis) {
    const auto found = model.weights.find(name);
    if (found == model.weights.end()) {
      return;
    }
    const Weight old = found->second;
    found->second = Weight::made("sorted", old.dtype(), old.shape(), {old},
                                 [=](std::vector<at::Tensor>& in) { return in[0].index_select(axis, order); });
  };
  for (const Slot slot : {Slot::up, Slot::gate}) {
    sorted(rows(slot), 0);
    sorted(name_of(bias_of(in_mlp(block, slot))), 0);
  }
  sorted(rows(Slot::down), 1);
}

}  // namespace

Model morph_start(const MorphPlan& plan, const Model& source) {
  Model start = source.architecture.head.tied && !plan.from.head.tied ? untied(source) : source;
  for (const TensorSpec& spec : tensor_table(plan.from)) {
    if (start.weights.contains(spec.name)) {
      continue;
    }
    PARE_CHECK(spec.part == Part::bias, "only biases are new");
    const Shape shape = spec.shape;
    const at::ScalarType type = type_of_weights(plan.from, source.weights);
    start.weights[spec.name] =
        Weight::leaf("zeros", dtype_of(type), shape, [shape, type] { return at::zeros(shape, type); });
  }
  for (const auto& [block, kept] : plan.neurons) {
    sort_neurons(start, block);
  }
  start.architecture = plan.from;
  check_positive(plan, start);
  return start;
}

Morph::Morph(MorphPlan plan, int64_t steps, const Model& start, at::Device device, const Communicator& ranks)
    : plan_(std::move(plan)), steps_(steps), ranks_(ranks), pace_(scalar_on(device, 1)) {
  blend_.t = scalar_on(device, 0);
  for (const LeavingNorm& norm : plan_.norms) {
    blend_.norms[norm.module] = {.t = blend_.t,
                                 .constant = scalar_on(device, 1),
                                 .sum = scalar_on(device, 0),
                                 .count = scalar_on(device, 0),
                                 .bias_fades = norm.bias_fades,
                                 .seen = blend_.seen};
    if (!ranks.alone()) {
      blend_.norms[norm.module].mean_of_all = [ranks](const at::Tensor& own) {
        const at::Tensor mean = own.clone();
        ranks.all_reduce(mean);
        return mean / ranks.size();
      };
    }
  }
  for (const LeavingProjection& projection : plan_.projections) {
    const double multiple = projection.partner
                                ? usual_length(load_double(start.weights.at(name_of(weight_of(projection.module)))))
                                : projection.multiple;
    blend_.projections[projection.module] = scalar_on(device, multiple == 0 ? 1 : multiple);
  }
  blend_.biases = {plan_.biases.begin(), plan_.biases.end()};
  blend_.skips = {plan_.skips.begin(), plan_.skips.end()};
  blend_.neurons = plan_.neurons;
}

double morph_t(int64_t step, int64_t steps) {
  const double left = 1 - static_cast<double>(step) / static_cast<double>(steps);
  return step >= steps ? 1 : 1 - left * left;
}

void Morph::go_to(int64_t step) const {
  blend_.t.fill_(t(step));
  // A gradient that asks for another size has to find a constant: what follows at once takes its effect away, and it
  // asks for ever more.
  pace_.fill_(std::max(slowest_pace, 1 / static_cast<double>(step + 1)) * (1 - t(step)));
}

void Morph::remeasure(const Tensors& weights, const at::Tensor& stopped) const {
  const at::NoGradGuard no_grad;
  for (const auto& [module, norm] : blend_.norms) {
    ranks_.all_reduce(norm.sum);
    ranks_.all_reduce(norm.count);
  }
  for (const auto& [module, norm] : blend_.norms) {
    const at::Tensor moved = norm.constant + (norm.sum / norm.count - norm.constant) * pace_;
    norm.constant.copy_(at::where(stopped > 0, norm.constant, moved));
    norm.sum.zero_();
    norm.count.zero_();
  }
  for (const LeavingNorm& norm : plan_.norms) {
    const auto gain = weights.find(name_of(weight_of(norm.module)));
    if (norm.exit == NormExit::table && gain != weights.end()) {
      gain->second.detach().clamp_min_(smallest_gain - norm.offset);
    }
  }
}

at::Tensor Morph::take_unevenness() const {
  return std::exchange(blend_.seen->unevenness, at::Tensor());
}

Morph::Tensors Morph::state() const {
  Tensors state;
  for (const auto& [module, norm] : blend_.norms) {
    state[constant_name(module)] = norm.constant;
  }
  for (const auto& [module, multiple] : blend_.projections) {
    state[constant_name(module)] = multiple;
  }
  return state;
}

void Morph::restore(const Weights& state) const {
  for (auto& [name, constant] : this->state()) {
    const auto found = state.find(name);
    refuse_if(found == state.end() || !found->second.shape().empty(), "the checkpoint has no {}: is it of another run?",
              quote(name));
    constant.copy_(found->second.load());
  }
}

}  // namespace pare
