// Theorem (paper 0: 8.4, corollary 8.4.1): for α(z) - α(-z) = z, and a set J of neurons with W₂[:,J] W₁[J,:] = -I,
//   W₂ α(W₁ x + b₁) + b₂ + x = W₂ α(D (W₁ x + b₁)) + (b₂ + W₂[:,J] b₁[J]),  D = -1 on J and 1 elsewhere.
// Before: W₁, b₁, b₂ and a skip.   After: D W₁, D b₁, b₂ + W₂[:,J] b₁[J], and no skip. (Columns, as in the paper.)
// widen=true, where no such J is there:  W₁* = [W₁; I; -I],  W₂* = [W₂, I, -I]:  α(x) - α(-x) = x.
//
// Proof: w₂ α(-z) = w₂ α(z) - w₂ z for each neuron of J; summed, that is less W₂[:,J] (W₁[J,:] x + b₁[J]) = -x + W₂ b₁.
// The paper has it for ReLU without biases, where it also proves that no other way exists in as many neurons.
//
// Preconditions: P1 an ungated dense MLP with a skip in a serial block; P2 the MLP reads and writes the stream itself:
// no norm before it, none on its output; P3 α(z) - α(-z) = z; P4 some J has W₂[:,J] W₁[J,:] = -I (widen=true: not
// needed). Exactness: signs are exact; what is left of W₂[:,J] W₁[J,:] + I is the error. Widening rounds nothing.
// Order: before merge_skipless and eliminate_projection, for which it frees the streams.
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
#include "pare/support/text.h"

namespace pare {

namespace {

// Why the structure does not allow it; empty where it does.
std::optional<Precondition> obstacle(const Block& block, int64_t n) {
  const auto fails = [n](const char* what, const char* expected, std::string found, const char* remedy) {
    return Precondition{.where = fmt::format("blocks.{}.mlp{}", n, what),
                        .block = n,
                        .expected = expected,
                        .found = std::move(found),
                        .remedy = remedy};
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
    return fails("", "a dense MLP", "neuron heads", "absorb_skip before lower_mlp_to_heads");
  }
  if (m.norm && m.norm->place == NormPlace::pre) {
    return fails(".norm", "no norm before the MLP", "the MLP reads a norm's output, the skip does not",
                 "train the model without the norm");
  }
  if (m.output_norm) {
    return fails(".output_norm", "no norm on the MLP's output", "the skip is added behind it",
                 "train the model without the norm");
  }
  if (dense->gated) {
    return fails("", "an MLP without a gate", fmt::format("{}-gated", word(dense->activation)),
                 "none: a neuron turned round changes by the product of both arms, not by x");
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
  std::string up, up_bias, down, down_bias;
  explicit Names(int64_t n)
      : up(name_of(weight_of(in_mlp(n, Slot::up)))),
        up_bias(name_of(bias_of(in_mlp(n, Slot::up)))),
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

void widen(Weights& weights, const Names& names, int64_t d) {
  const Weight up = weights.at(names.up), down = weights.at(names.down);
  const int64_t width = up.shape()[0] + 2 * d;
  const auto beside = [d](int64_t axis) {
    return [d, axis](const std::vector<at::Tensor>& in) {
      const at::Tensor one = at::eye(d, at::kDouble);
      return at::cat({in[0], one, -one}, axis);
    };
  };
  weights[names.up] = computed({width, d}, Formula::enclosed("[", up.formula(), ", I, -I]"), {up}, beside(0));
  weights[names.down] = computed({d, width}, Formula::enclosed("[", down.formula(), "; I; -I]"), {down}, beside(1));
  if (const auto bias = weights.find(names.up_bias); bias != weights.end()) {
    const Weight old = bias->second;
    bias->second = computed({width}, Formula::enclosed("[", old.formula(), ", 0, 0]"), {old},
                            [d](const std::vector<at::Tensor>& in) {
                              return at::cat({in[0], at::zeros({2 * d}, at::kDouble)});
                            });
  }
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
      const std::optional<Precondition> failed = obstacle(block_at(n), n);
      proposal_.preconditions.push_back(failed ? *failed : absorb(n));
    }
    proposal_.roundings = walk_.roundings();
    add_notes();
    return std::move(proposal_);
  }

 private:
  Block& block_at(int64_t n) { return proposal_.after.architecture.blocks[static_cast<size_t>(n)]; }

  // Changes the block where its weights allow it, or room may be made. Without weights they are taken to allow it.
  Precondition absorb(int64_t n) {
    DenseMlp& dense = std::get<DenseMlp>(block_at(n).mlp->kind);
    const Names names(n);
    const bool known = model_.has_weights();
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
    if (model_.has_weights()) {
      widen(proposal_.after.weights, names, d);
    }
    dense.width += 2 * d;
    grown_ += 4 * d * d + (dense.bias.up ? 2 * d : 0);
    ++widened_;
  }

  void add_notes() {
    std::vector<std::string>& notes = proposal_.notes;
    const int64_t d = model_.architecture.width;
    if (widened_ > 0) {
      notes.push_back(
          fmt::format("{} MLPs take {} neurons more each, {} parameters in all; the query that eliminate_projection "
                      "can then remove "
                      "has {}",
                      widened_, 2 * d, with_commas(grown_), with_commas(d * d)));
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
  int64_t widened_ = 0, grown_ = 0, created_ = 0;  // MLPs; parameters
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
      .preconditions = {"an ungated dense MLP with a skip, in a serial block", "no norm before it or on its output",
                        "an activation with α(z) - α(-z) = z: relu, gelu, silu",
                        "neurons J with W₂[:,J]W₁[J,:] = -I (widen=true: 2 width neurons more instead)"},
      .options = {{"widen", "false|true", "false"}},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
