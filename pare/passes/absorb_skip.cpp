// Theorem (paper 0: 8.4, corollary 8.4.1): for α(z) - α(-z) = z, and a set J of neurons with W₂[:,J] W₁[J,:] = -I,
//   W₂ α(W₁ x + b₁) + b₂ + x = W₂ α(D (W₁ x + b₁)) + (b₂ + W₂[:,J] b₁[J]),  D = -1 on J and 1 elsewhere.
// Before: W₁, b₁, b₂ and a skip.   After: D W₁, D b₁, b₂ + W₂[:,J] b₁[J], and no skip. (Columns, as in the paper.)
// widen=true, where no such J is there:  W₁* = [W₁; I; -I],  W₂* = [W₂, I, -I]:  α(x) - α(-x) = x.
// widen=true, with a gate, W₂ (α(W_g x + b_g) ∘ (W₁ x + b₁)):  W_g* = [W_g; 0], b_g* = [b_g; c], W₁* = [W₁; I/a],
//   W₂* = [W₂, I] for an α(c) = a: new neuron i writes α(c) x_i / a = x_i. Half as many neurons, and any α has such a
//   c.
//
// Proof: w₂ α(-z) = w₂ α(z) - w₂ z for each neuron of J; summed, that is less W₂[:,J] (W₁[J,:] x + b₁[J]) = -x + W₂ b₁.
// The paper has it for ReLU without biases, where it also proves that no other way exists in as many neurons.
//
// Preconditions: P1 a dense MLP with a skip in a serial block; P2 the MLP reads and writes the stream itself: no norm
// before it, none on its output; P3 α(z) - α(-z) = z, and no gate (widen=true, with a gate: any α); P4 some J has
// W₂[:,J] W₁[J,:] = -I (widen=true: not needed).
// Exactness: signs are exact; what is left of W₂[:,J] W₁[J,:] + I is the error. Widening rounds nothing: SiLU(c) = 1
// has a c that no type holds, but SiLU(64) = 64 to within 2⁻⁹², and 64 and 1/64 every type holds
// (open_gate in pare/arch/mlp.h). 1/a is in the rows that read, so that nothing on the way is larger than x: float16
// would overflow at 64 x. Order: before merge_skipless and eliminate_projection, for which it frees the streams.
// Reference: docs/theorems/absorb_skip.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "pare/algebra/amplification.h"
#include "pare/algebra/flipped_neurons.h"
#include "pare/algebra/operations.h"
#include "pare/arch/architecture_json.h"
#include "pare/arch/mlp.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// Why the structure does not allow it; empty where it does.
std::optional<Precondition> obstacle(const Block& block, int64_t n, int64_t width, bool may_widen) {
  const auto fails = [n](const char* what, const char* expected, std::string found, std::string remedy) {
    return Precondition{.where = fmt::format("blocks.{}.mlp{}", n, what),
                        .block = n,
                        .expected = expected,
                        .found = std::move(found),
                        .remedy = std::move(remedy)};
  };
  if (!block.mlp) {
    return fails("", "an MLP with a skip", "there is no MLP", "");
  }
  const Mlp& m = *block.mlp;
  if (block.wiring == Wiring::parallel) {
    return fails("", "a serial block", "attention and MLP share one skip", "train the model with serial blocks");
  }
  if (!m.skip) {
    return fails("", "an MLP with a skip", "there is no skip", "");
  }
  const DenseMlp* dense = std::get_if<DenseMlp>(&m.kind);
  if (!dense) {
    return fails("", "a dense MLP", kind_of(m), "absorb_skip before lower_mlp_to_heads");
  }
  if (m.norm && m.norm->place == NormPlace::pre) {
    return fails(".norm", "no norm before the MLP", "the MLP reads a norm's output, the skip does not",
                 "train the model without the norm");
  }
  if (m.output_norm) {
    return fails(".output_norm", "no norm on the MLP's output", "the skip is added behind it",
                 "train the model without the norm");
  }
  if (dense->gated && may_widen) {
    return std::nullopt;
  }
  if (dense->gated) {  // a neuron turned round changes by the product of both arms, not by x
    return fails("", "an MLP without a gate", fmt::format("{}-gated", word(dense->activation)),
                 fmt::format("widen=true, which takes {} neurons more", width));
  }
  if (!has_linear_odd_part(dense->activation)) {
    return fails("", "an activation with α(z) - α(-z) = z", word(dense->activation), "none: it has no such part");
  }
  return std::nullopt;
}

std::string neuron_list(const std::vector<int64_t>& neurons) {  // "3, 5-7"
  std::vector<std::string> parts;
  for (size_t i = 0; i < neurons.size();) {
    size_t last = i;
    while (last + 1 < neurons.size() && neurons[last + 1] == neurons[last] + 1) {
      ++last;
    }
    parts.push_back(i == last ? fmt::format("{}", neurons[i]) : fmt::format("{}-{}", neurons[i], neurons[last]));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

struct Names {
  std::string up, up_bias, gate, gate_bias, down, down_bias;
  explicit Names(int64_t n)
      : up(name_of(weight_of(in_mlp(n, Slot::up)))),
        up_bias(name_of(bias_of(in_mlp(n, Slot::up)))),
        gate(name_of(weight_of(in_mlp(n, Slot::gate)))),
        gate_bias(name_of(bias_of(in_mlp(n, Slot::gate)))),
        down(name_of(weight_of(in_mlp(n, Slot::down)))),
        down_bias(name_of(bias_of(in_mlp(n, Slot::down)))) {}
};

double coarsest_roundoff(const Weight& a, const Weight& b) {
  return std::max(unit_roundoff(a.dtype()), unit_roundoff(b.dtype()));
}

Flips flips_of(const Weights& weights, const Names& names) {
  const Weight up = weights.at(names.up), down = weights.at(names.down);
  const auto bias = weights.find(names.up_bias);
  const at::Tensor w = load_double(up);
  return find_flips({.up = w,
                     .bias = bias == weights.end() ? at::Tensor() : load_double(bias->second),
                     .down = load_double(down),
                     .roundoff = coarsest_roundoff(up, down)},
                    -at::eye(w.size(1), at::kDouble));
}

void turn_round(Weights& weights, const Names& names, int64_t block, const std::vector<int64_t>& neurons) {
  const Weight up = weights.at(names.up), down = weights.at(names.down);
  const int64_t width = up.shape()[0];
  const at::Tensor indices = at::tensor(neurons), chosen = at::zeros({width}, at::kDouble).index_fill_(0, indices, 1);
  const at::Tensor signs = 1 - 2 * chosen;
  const std::string list = neuron_list(neurons);
  const Formula turned = Formula::symbol("D", block, fmt::format("signs({}; {})", width, list));
  weights[names.up] = computed(up.shape(), up.formula() * turned, {up},
                               [signs](const std::vector<at::Tensor>& in) { return in[0] * signs.unsqueeze(1); });
  const auto bias = weights.find(names.up_bias);
  if (bias == weights.end()) {
    return;
  }
  const Weight old = bias->second;
  const Formula moved =
      old.formula() * Formula::symbol("J", block, fmt::format("only({}; {})", width, list)) * down.formula();
  const auto before = weights.find(names.down_bias);
  const bool has_bias = before != weights.end();
  std::vector<Weight> inputs = {down, old};
  if (has_bias) {
    inputs.push_back(before->second);
  }
  weights[names.down_bias] = computed({down.shape()[0]}, has_bias ? before->second.formula() + moved : moved, inputs,
                                      [chosen, has_bias](const std::vector<at::Tensor>& in) {
                                        const at::Tensor added = at::mv(in[0], in[1] * chosen);
                                        return has_bias ? in[2] + added : added;
                                      });
  weights[names.up_bias] = computed(old.shape(), old.formula() * turned, {old},
                                    [signs](const std::vector<at::Tensor>& in) { return in[0] * signs; });
}

// `more` behind what is there, along an axis; `text` is how a formula says that.
void append(Weight& weight, int64_t axis, const at::Tensor& more, const std::string& text) {
  const Weight old = weight;
  Shape shape = old.shape();
  shape[axis] += more.size(axis);
  weight = computed(shape, Formula::enclosed("[", old.formula(), text + "]"), {old},
                    [axis, more](const std::vector<at::Tensor>& in) {
                      return at::cat({in[0], more}, axis);
                    });
}

void append_if_there(Weights& weights, const std::string& bias, const at::Tensor& more, const std::string& text) {
  if (const auto found = weights.find(bias); found != weights.end()) {
    append(found->second, 0, more, text);
  }
}

void widen(Weights& weights, const Names& names, int64_t d) {
  const at::Tensor one = at::eye(d, at::kDouble);
  append(weights.at(names.up), 0, at::cat({one, -one}), ", I, -I");
  append(weights.at(names.down), 1, at::cat({one, -one}, 1), "; I; -I");
  append_if_there(weights, names.up_bias, at::zeros({2 * d}, at::kDouble), ", 0, 0");
}

void widen_gated(Weights& weights, const Names& names, int64_t d, const OpenGate& open) {
  const at::Tensor one = at::eye(d, at::kDouble), held_open = at::full({d}, open.at, at::kDouble);
  const int64_t width = weights.at(names.up).shape()[0];
  append(weights.at(names.up), 0, one / open.value, open.value == 1 ? ", I" : fmt::format(", I/{}", open.value));
  append(weights.at(names.gate), 0, at::zeros({d, d}, at::kDouble), ", 0");
  append(weights.at(names.down), 1, one, "; I");
  append_if_there(weights, names.up_bias, at::zeros({d}, at::kDouble), ", 0");
  if (weights.contains(names.gate_bias) || open.at == 0) {
    append_if_there(weights, names.gate_bias, held_open, fmt::format(", {}", open.at));
    return;
  }
  weights[names.gate_bias] = computed({width + d}, Formula(fmt::format("[zeros({}), {}]", width, open.at)), {},
                                      [width, held_open](const std::vector<at::Tensor>&) {
                                        return at::cat({at::zeros({width}, at::kDouble), held_open});
                                      });
}

std::string verdict_on(const Flips& flips, Activation activation) {
  const std::string nearest =
      flips.error > 0.1 ? "no set of neurons comes close" : fmt::format("the nearest leave {:.1g} of x", flips.error);
  if (!flips.open.empty()) {
    return fmt::format("{}; undetermined, since {}", nearest, fmt::join(flips.open, ", "));
  }
  if (activation == Activation::relu) {
    return fmt::format("{}, and no other solution exists", nearest);
  }
  return fmt::format("{}; whether there is another way is open for {}", nearest, word(activation));
}

class Absorption {
 public:
  Absorption(const Model& model, bool may_widen) : model_(model), may_widen_(may_widen), proposal_{.after = model} {}

  Proposal run() {
    for (int64_t n = 0; n < std::ssize(model_.architecture.blocks); ++n) {
      const std::optional<Precondition> failed = obstacle(block_at(n), n, model_.architecture.width, may_widen_);
      proposal_.preconditions.push_back(failed ? *failed : absorb(n));
    }
    proposal_.roundings = walk_.roundings();
    add_notes();
    return std::move(proposal_);
  }

 private:
  Block& block_at(int64_t n) { return proposal_.after.architecture.blocks[n]; }

  // Changes the block where its weights allow it, or room may be made. Without weights they are taken to allow it.
  Precondition absorb(int64_t n) {
    DenseMlp& dense = std::get<DenseMlp>(block_at(n).mlp->kind);
    const Names names(n);
    const bool known = model_.has_weights();
    if (dense.gated) {
      make_room(dense, names);
      return absorbed(n, {.where = fmt::format("blocks.{}.mlp", n),
                          .block = n,
                          .expected = "a gate that a constant can hold open",
                          .found = fmt::format("{}-gated", word(dense.activation))});
    }
    const Flips flips = known ? flips_of(model_.weights, names) : Flips{.found = !may_widen_};
    Precondition condition{
        .where = fmt::format("blocks.{}.mlp", n), .block = n, .expected = "neurons J with down[J] up[J] = -I"};
    if (known) {
      condition.measured = flips.residual;
      condition.limit = 1;
    }
    if (flips.found) {
      condition.found =
          known ? fmt::format("{} of {} neurons", flips.neurons.size(), dense.width) : "only the weights can tell";
      turn(n, dense, names, flips);
    } else if (may_widen_) {
      condition = {.where = condition.where,
                   .block = n,
                   .expected = "an activation with α(z) - α(-z) = z",
                   .found = word(dense.activation)};
      make_room(dense, names);
    } else {
      condition.found = verdict_on(flips, dense.activation);
      condition.remedy = fmt::format("widen=true, which takes {} neurons more", 2 * model_.architecture.width);
      return condition;
    }
    return absorbed(n, std::move(condition));
  }

  Precondition absorbed(int64_t n, Precondition condition) {
    condition.holds = true;
    block_at(n).mlp->skip = false;
    proposal_.applies = true;
    return condition;
  }

  void turn(int64_t n, DenseMlp& dense, const Names& names, const Flips& flips) {
    created_ += dense.bias.up && !dense.bias.down ? model_.architecture.width : 0;
    dense.bias.down |= dense.bias.up;
    if (!model_.has_weights()) {
      return;
    }
    turn_round(proposal_.after.weights, names, n, flips.neurons);
    const int64_t runs = runs_of(model_.architecture, n);
    const double amplified = amplification(model_, weight_of(in_mlp(n, Slot::down)));
    const double roundoff = coarsest_roundoff(model_.weights.at(names.up), model_.weights.at(names.down));
    walk_.step(amplified * flips.error / roundoff, runs);
    walk_.step(dense.bias.up ? amplified : 0, runs);
    left_over_ = std::max(left_over_, flips.error);
  }

  void make_room(DenseMlp& dense, const Names& names) {
    const int64_t d = model_.architecture.width;
    const bool known = model_.has_weights();
    ++widened_;
    if (!dense.gated) {
      if (known) {
        widen(proposal_.after.weights, names, d);
      }
      dense.width += 2 * d;
      grown_ += 4 * d * d + (dense.bias.up ? 2 * d : 0);
      return;
    }
    const OpenGate open = open_gate(dense.activation);
    if (known) {
      widen_gated(proposal_.after.weights, names, d, open);
    }
    dense.width += d;
    const bool needs_bias = open.at != 0 && !dense.bias.gate;
    gate_biases_ += needs_bias ? dense.width : 0;
    grown_ += 3 * d * d + (dense.bias.up ? d : 0) + (needs_bias ? dense.width : dense.bias.gate ? d : 0);
    dense.bias.gate |= needs_bias;
    ++gated_;
  }

  void add_notes() {
    std::vector<std::string>& notes = proposal_.notes;
    const int64_t d = model_.architecture.width;
    if (widened_ > 0) {
      const std::string each = gated_ == 0          ? fmt::format("{}", 2 * d)
                               : gated_ == widened_ ? fmt::format("{}", d)
                                                    : fmt::format("{} (with a gate) or {}", d, 2 * d);
      notes.push_back(
          fmt::format("{} MLPs take {} neurons more each, {} parameters in all; the query that eliminate_projection "
                      "can then remove has {}",
                      widened_, each, with_commas(grown_), with_commas(d * d)));
    }
    if (gate_biases_ > 0) {
      notes.push_back(fmt::format("gate biases have to be created: {} of these parameters", with_commas(gate_biases_)));
    }
    if (left_over_ > 1e-12) {
      notes.push_back(fmt::format(
          "the stored weights allow it up to {:.1g} of x: in a wider type this error would remain", left_over_));
    }
    if (created_ > 0) {
      notes.push_back(fmt::format("down biases have to be created: {} parameters more", with_commas(created_)));
    }
    if (proposal_.applies) {
      notes.emplace_back("saves nothing by itself: without the skip, eliminate_projection and merge_skipless can");
    }
  }

  const Model& model_;
  bool may_widen_;
  Proposal proposal_;
  int64_t widened_ = 0, gated_ = 0;                    // MLPs
  int64_t grown_ = 0, gate_biases_ = 0, created_ = 0;  // parameters
  double left_over_ = 0;
  RoundingWalk walk_;
};

Proposal propose(const Model& model, const Options& options, const std::optional<Budget>&) {
  return Absorption(model, options.at("widen") == "true").run();
}

}  // namespace

const Pass& pass_absorb_skip() {
  static const Pass pass{
      .id = "absorb_skip",
      .theorem = "W₂α(W₁x) + x = W₂α(DW₁x) where W₂[:,J]W₁[J,:] = -I and D turns J round",
      .saves = "nothing by itself: the MLP's skip goes, and streams become free for others",
      .reference = "W_K, W_V is Probably All You Need (Karbevski and Mijoski 2025), theorem 8.4 and corollary 8.4.1",
      .preconditions = {"a dense MLP with a skip, in a serial block", "no norm before it or on its output",
                        "no gate, and an activation with α(z) - α(-z) = z: relu, gelu, silu",
                        "neurons J with W₂[:,J]W₁[J,:] = -I",
                        "widen=true instead of the last two: 2 width neurons more; with a gate, width more and any "
                        "activation"},
      .options = {{"widen", "false|true", "false"}},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
