// Theorem (paper 2: 2, 4, 6, 7, with biases): a neuron is an attention head of width one over {self, extra token}:
//   α(x̂ v) w = softmax(x̂ q, 0)₁ (x̂ u) w*,  x̂ = [x, 1],  q = u = a₂ v,  w* = a₁ w,  for α(z) = a₁ SiLU(a₂ z).
// Before: up v = [W; b], down w, and its bias.   After: query q (and value u) of d + 1 rows, output w*, the same bias.
// Gated by a sigmoid: σ(x̂ g) (x̂ v) w, so q = g and u = v.
//
// Proof: the head scores x̂ q on the token itself and 0 on the extra one, whose value is 0. The softmax of the two is
// σ(x̂ q), so the head writes σ(x̂ q) (x̂ u) w, and SiLU(z) = σ(z) z. a₁ SiLU(a₂ v) = a₁ σ(a₂ v) (a₂ v).
//
// Preconditions: P1 a dense MLP; P2 ungated with α(z) = a₁ SiLU(a₂ z), that is silu or quick_gelu; or gated by sigmoid.
// approximate=gelu, relu: GELU(z) ≈ SiLU(1.702 z) / 1.702 and ReLU(z) ≈ SiLU(c z) / c, c the sharpness.
// Exactness: numbers are copied; only a₁ and a₂ other than one round. What is approximate says so.
// Order: after all that turns or removes MLP matrices, which know dense ones better.
// Reference: docs/theorems/lower_mlp_to_heads.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/algebra/amplification.h"
#include "pare/algebra/operations.h"
#include "pare/arch/architecture_json.h"
#include "pare/support/error.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

constexpr double gelu_slope = 1.702;
constexpr std::string_view usual_sharpness = "1000";

// α(z) = SiLU(slope z) / slope, exactly or nearly.
struct GeneralSilu {
  double slope = 1;
  std::string approximation;  // empty: exactly
};

std::optional<GeneralSilu> as_silu(Activation activation, const Options& options) {
  const std::string& allowed = options.at("approximate");
  switch (activation) {
    case Activation::silu:
      return GeneralSilu{};
    case Activation::quick_gelu:
      return GeneralSilu{.slope = gelu_slope};
    case Activation::gelu:
    case Activation::gelu_tanh:
      if (allowed == "gelu") {
        return GeneralSilu{gelu_slope, fmt::format("GELU(z) ≈ SiLU(1.702 z) / 1.702, off by up to {} in a neuron",
                                                   activation == Activation::gelu ? 0.0204 : 0.0207)};
      }
      return std::nullopt;
    case Activation::relu:
      if (allowed == "relu") {
        const std::string& sharpness = options.at("sharpness");
        const double c = std::stod(sharpness);
        return GeneralSilu{c, fmt::format("ReLU(z) ≈ SiLU({} z) / {}, off by up to {:.3g} in a neuron", sharpness,
                                          sharpness, 0.27846 / c)};
      }
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

// What would help where an activation is no SiLU.
std::string remedy_for(const DenseMlp& dense) {
  if (dense.gated) {
    return fmt::format("none: {}(g) v is a product of three, a head makes one of two", word(dense.activation));
  }
  switch (dense.activation) {
    case Activation::gelu:
    case Activation::gelu_tanh:
      return "approximate=gelu, within --max-error";
    case Activation::relu:
      return "approximate=relu, within --max-error";
    default:
      return "none: it is not a sigmoid times its input";
  }
}

class Lowering {
 public:
  Lowering(Model& model, int64_t block, DenseMlp dense, double slope)
      : weights_(model.weights), block_(block), d_(model.architecture.width), dense_(dense), slope_(slope) {}

  void run() {
    set(Slot::query, extended(dense_.gated ? Slot::gate : Slot::up));
    if (dense_.gated) {
      set(Slot::value, extended(Slot::up));
    }
    const Weight down = weights_.at(name(weight_of(in_mlp(block_, Slot::down))));
    set(Slot::output, slope_ == 1
                          ? down
                          : computed(down.shape(), Formula(fmt::format("{}", 1 / slope_)) * down.formula(), {down},
                                     [s = slope_](const std::vector<at::Tensor>& in) { return in[0] / s; }));
    const auto bias = weights_.find(name(bias_of(in_mlp(block_, Slot::down))));
    if (bias != weights_.end()) {
      weights_[name(bias_of(in_mlp(block_, Slot::output)))] = bias->second;
    }
    for (const Slot slot : {Slot::up, Slot::gate, Slot::down}) {
      weights_.erase(name(weight_of(in_mlp(block_, slot))));
      weights_.erase(name(bias_of(in_mlp(block_, slot))));
    }
  }

 private:
  static std::string name(const TensorId& id) { return name_of(id); }
  void set(Slot slot, const Weight& weight) { weights_[name(weight_of(in_mlp(block_, slot)))] = weight; }

  // slope · [W | b], stored [width, d + 1].
  Weight extended(Slot slot) const {
    const Weight matrix = weights_.at(name(weight_of(in_mlp(block_, slot))));
    const auto bias = weights_.find(name(bias_of(in_mlp(block_, slot))));
    const bool biased = bias != weights_.end();
    Formula formula = Formula::enclosed("[", matrix.formula(), "; 0]");
    std::vector<Weight> inputs = {matrix};
    if (biased) {
      formula = formula + Formula::enclosed("[0; ", bias->second.formula(), "]");
      inputs.push_back(bias->second);
    }
    return computed({dense_.width, d_ + 1}, slope_ == 1 ? formula : Formula(fmt::format("{}", slope_)) * formula,
                    inputs, [biased, slope = slope_](const std::vector<at::Tensor>& in) {
                      const at::Tensor last = biased ? in[1].unsqueeze(1) : at::zeros_like(in[0].narrow(1, 0, 1));
                      return slope * at::cat({in[0], last}, 1);
                    });
  }

  Weights& weights_;
  int64_t block_, d_;
  DenseMlp dense_;
  double slope_;
};

Proposal propose(const Model& model, const Options& options, const std::optional<Budget>&) {
  if (std::stol(options.at("sharpness")) == 0) {
    throw InputError("lower_mlp_to_heads{sharpness=0}: expected a number from 1 on, by which SiLU is sharpened");
  }
  if (options.at("sharpness") != usual_sharpness && options.at("approximate") != "relu") {
    throw InputError(
        fmt::format("lower_mlp_to_heads{{sharpness={}}}: only approximate=relu sharpens anything, found "
                    "approximate={}",
                    options.at("sharpness"), options.at("approximate")));
  }
  Proposal proposal{.after = model};
  int64_t created = 0, heads = 0;
  RoundingWalk walk;
  for (int64_t n = 0; n < std::ssize(model.architecture.blocks); ++n) {
    std::optional<Mlp>& mlp = proposal.after.architecture.blocks[n].mlp;
    Precondition condition{.where = fmt::format("blocks.{}.mlp", n), .block = n, .expected = "a dense MLP"};
    const DenseMlp* found = mlp ? std::get_if<DenseMlp>(&mlp->kind) : nullptr;
    if (!found) {
      condition.found = mlp ? kind_of(*mlp) : "there is no MLP";
      proposal.preconditions.push_back(std::move(condition));
      continue;
    }
    const DenseMlp dense = *found;
    const bool sigmoid_gate = dense.gated && dense.activation == Activation::sigmoid;
    const std::optional<GeneralSilu> silu = dense.gated ? std::nullopt : as_silu(dense.activation, options);
    condition.expected = "neurons that are a sigmoid times a number: silu, or gated by sigmoid";
    condition.found = fmt::format("{}{}", word(dense.activation), dense.gated ? "-gated" : "");
    if (!sigmoid_gate && !silu) {
      condition.remedy = remedy_for(dense);
      proposal.preconditions.push_back(std::move(condition));
      continue;
    }
    condition.holds = true;
    proposal.preconditions.push_back(std::move(condition));
    const double slope = silu ? silu->slope : 1;
    if (model.has_weights()) {
      Lowering(proposal.after, n, dense, slope).run();
    }
    mlp->kind = NeuronHeads{.width = dense.width, .shared_value = !dense.gated, .output_bias = dense.bias.down};
    created += (dense.bias.up ? 0 : dense.width) + (dense.gated && !dense.bias.gate ? dense.width : 0);
    heads += dense.width;
    if (silu && !silu->approximation.empty()) {
      proposal.approximation = silu->approximation;
    }
    const double amplified = amplification(model, weight_of(in_mlp(n, Slot::up)));
    for (const Slot slot : {Slot::query, Slot::value, Slot::output}) {
      amplify(proposal.after, weight_of(in_mlp(n, slot)), amplified);
    }
    walk.step(slope == 1 ? 0 : amplified, runs_of(model.architecture, n));
    proposal.applies = true;
  }
  proposal.roundings = walk.roundings();
  if (proposal.applies) {
    proposal.notes.push_back(fmt::format(
        "{} neurons become heads of width one over {{self, extra token}}: the model is attention alone, and no smaller",
        with_commas(heads)));
  }
  if (created > 0) {
    proposal.notes.push_back(
        fmt::format("neurons without a bias get one of zero: {} parameters more", with_commas(created)));
  }
  return proposal;
}

}  // namespace

const Pass& pass_lower_mlp_to_heads() {
  static const Pass pass{
      .id = "lower_mlp_to_heads",
      .theorem = "SiLU(x̂v) w = softmax(x̂v, 0)₁ (x̂v) w: a neuron is a head of width one",
      .saves = "nothing: one kind of sublayer less, and MLP width more in each layer without biases",
      .reference = "Attention-Only Transformers (Huben and Morris 2023), theorems 2, 4, 6, 7",
      .preconditions = {"a dense MLP", "ungated with silu or quick_gelu, or gated by sigmoid",
                        "approximate=gelu|relu: nearly so, within --max-error"},
      .options = {{"approximate", "never|gelu|relu", "never"}, {"sharpness", "N", usual_sharpness}},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
