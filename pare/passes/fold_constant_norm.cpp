// Theorem: n(x) = (x - m) g / √(v + ε) + c is the affine map x C diag(g) / √ε + c, off by at most v / 2ε of its linear
// part, where v <= 2ε u is the variance of x (for an RMSNorm: its mean square, and C = I), C = I - 1ᵀ1 / d.
// Before: norm of gain g and bias c, readers W, b.   After: C diag(g/√ε) W, b + c W, no norm. Or, where the norm alone
// reads what some writer V, a wrote: V C diag(g/√ε), a C diag(g/√ε) + c.
//
// A scale x r g + c is such a map as it is, exactly: r for 1/√ε, C = I, and no condition P1.
//
// Proof: √(v + ε) = √ε √(1 + v/ε), and 1 - 1/√(1 + t) <= t/2 for t >= 0. A centring and a diagonal are matrices, and a
// matrix is linear. One factor for all coordinates of a row, no further from one than a rounding of the stored type.
//
// Preconditions: P1 an epsilon above 1 that dwarfs the variance: v / 2ε is at most the unit roundoff u of the stored
// type, by a bound from the weights, for all inputs (pare/proof/norm_bounds.h), or else measured on sampled inputs; P2
// every reader is a matrix of its own, not a tied head (head=untie gives it one); or one sublayer or the embedding
// alone writes what the norm reads; P3 a bias of the norm needs biases, which are created where there are none.
// Exactness: v / 2ε of each row, one product and one mean per weight, no inverse.
// Order: first, since what is no norm is in nobody's way. Reference: docs/theorems/fold_constant_norm.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "pare/algebra/basis.h"
#include "pare/algebra/constant_norms.h"
#include "pare/algebra/shift.h"
#include "pare/arch/count.h"
#include "pare/arch/norm_exits.h"
#include "pare/arch/norms.h"
#include "pare/proof/norm_bounds.h"
#include "pare/support/mapped.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// ---- the map, and where it goes

struct Factors {
  Formula formula;
  std::vector<Weight> inputs;
  std::function<at::Tensor(const at::Tensor& rows, const std::vector<at::Tensor>& inputs)> times;
};

// Rows times diag(g / √ε); of a scale, diag(r g). Gains of each head: rows of each head, [heads, n, width].
Factors factors_of(const Model& model, const Norm& norm, const ModuleId& module, int64_t width) {
  const double root = norm.kind == NormKind::scale ? norm.factor : 1 / std::sqrt(norm.epsilon), offset = norm.offset;
  const Formula number(fmt::format("{}", root));
  if (!norm.gain) {
    const Formula all = Formula::diagonal(Formula::enclosed(fmt::format("repeated({}, ", width), number, ")"));
    return {all, {}, [root](const at::Tensor& rows, const auto&) { return rows * root; }};
  }
  const Weight gain = model.weights.at(name_of(weight_of(module)));
  const bool of_each_head = gain.shape().size() == 2;
  const Formula stored = of_each_head ? Formula::enclosed("flat(", gain.formula(), ")") : gain.formula();
  const Formula whole = offset == 0 ? stored : stored + fmt::format("{}", offset);
  return {number * Formula::diagonal(whole), {gain}, [=](const at::Tensor& rows, const auto& in) {
            const at::Tensor factors = (in[0] + offset) * root;
            return rows * (of_each_head ? factors.unsqueeze(1) : factors);
          }};
}

Formula centring(int64_t width) {
  return fmt::format("centring({})", width);
}

RowMap read_map(const Model& model, const Norm& norm, const ModuleId& module, int64_t width) {
  const Factors factors = factors_of(model, norm, module, width);
  if (norm.kind != NormKind::layer) {
    return {factors.formula.transposed(), factors.inputs, factors.times};
  }
  return {(centring(width) * factors.formula).transposed(), factors.inputs,
          [factors](const at::Tensor& rows, const auto& in) {
            const at::Tensor scaled = factors.times(rows, in);
            return scaled - scaled.mean(1, true);
          }};
}

RowMap written_map(const Model& model, const Norm& norm, const ModuleId& module, int64_t width) {
  const Factors factors = factors_of(model, norm, module, width);
  if (norm.kind != NormKind::layer) {
    return {factors.formula, factors.inputs, factors.times};
  }
  return {centring(width) * factors.formula, factors.inputs,
          [factors](const at::Tensor& rows, const auto& in) { return factors.times(rows - rows.mean(-1, true), in); }};
}

void map_ports(Model& model, const Stream& stream, const RowMap& map) {
  for (const Port& port : stream.ports) {
    Weight& weight = model.weights.at(name_of(port.tensor));
    weight = mapped_along(weight, port, stream.width, map);
  }
}

void drop_tensors(Model& model, const ModuleId& norm) {
  model.weights.erase(name_of(weight_of(norm)));
  model.weights.erase(name_of(bias_of(norm)));
}

void fold_into_readers(Model& model, const Stream& stream, const NormBetween& at) {
  if (at.norm.bias) {
    shift_readers(model, stream, model.weights.at(name_of(bias_of(at.module))));
  }
  map_ports(model, stream, read_map(model, at.norm, at.module, stream.width));
}

// Adds c to a bias, which may not be there yet, or to every row of a table.
void add_constant(Model& model, const TensorId& place, const Weight& constant) {
  Weight& rows = model.weights[name_of(place)];
  // A token's row is multiplied by the scale of the embedding afterwards.
  const double scale = place == weight_of(token_table) ? model.architecture.embedding.scale : 1;
  const Formula added = scale == 1 ? constant.formula() : Formula(fmt::format("{}", 1 / scale)) * constant.formula();
  rows = rows ? computed(
                    rows.shape(), rows.formula() + added, {rows, constant},
                    [scale](const std::vector<at::Tensor>& in) { return in[0] + in[1] / scale; }, Weight::Rows::each)
              : computed(constant.shape(), added, {constant}, [](const std::vector<at::Tensor>& in) { return in[0]; });
}

void fold_into_writers(Model& model, const Stream& stream, const NormBetween& at, const AffineExit& exit) {
  map_ports(model, stream, written_map(model, at.norm, at.module, stream.width));
  if (exit.place) {
    add_constant(model, *exit.place, model.weights.at(name_of(bias_of(at.module))));
  }
}

// The norm of each head's query, or key, into the matrix and the bias that make it; or that of all of them at once.
void fold_into_heads(Model& model, const ModuleId& matrix, const ModuleId& norm, const Attention& t, int64_t heads) {
  const std::string weight = name_of(weight_of(matrix)), bias = name_of(bias_of(matrix));
  const int64_t parts = t.qk_norm_over == QkNormOver::layer ? 1 : heads, width = heads * t.head_width / parts;
  const bool of_each_head = t.qk_norm_over == QkNormOver::each_head;
  const RowMap map = written_map(model, *t.qk_norm, norm, width);
  const auto repeated = [parts](const Formula& one) {
    return parts == 1 ? one : Formula::enclosed(fmt::format("repeated({}, ", parts), one, ")");
  };
  Formula factor = repeated(map.matrix);
  if (of_each_head && t.qk_norm->gain) {
    factor = factors_of(model, *t.qk_norm, norm, width).formula;
    factor = t.qk_norm->kind == NormKind::layer ? repeated(centring(width)) * factor : factor;
  }
  const auto each_head = [&](const Weight& old) {
    std::vector<Weight> inputs = {old};
    inputs.insert(inputs.end(), map.inputs.begin(), map.inputs.end());
    return computed(old.shape(), old.formula() * factor, inputs, [=, apply = map.apply](std::vector<at::Tensor>& in) {
      const at::Tensor stored = in[0];
      in.erase(in.begin());
      const at::Tensor rows = stored.view({parts, width, -1}).transpose(1, 2);  // [heads, n, width]
      return apply(rows, in).transpose(1, 2).reshape(stored.sizes());
    });
  };
  Weight& matrix_weight = model.weights.at(weight);
  matrix_weight = each_head(matrix_weight);
  if (const auto found = model.weights.find(bias); found != model.weights.end()) {
    found->second = each_head(found->second);
  }
  if (!t.qk_norm->bias) {
    return;
  }
  const Weight constant = model.weights.at(name_of(bias_of(norm)));
  const Formula all = of_each_head ? Formula::enclosed("flat(", constant.formula(), ")") : repeated(constant.formula());
  add_constant(model, bias_of(matrix),
               computed({parts * width}, all, {constant}, [=](const std::vector<at::Tensor>& in) {
                 return of_each_head ? in[0].flatten() : in[0].repeat({parts});
               }));
}

// ---- the pass

std::vector<ModuleId> all_norms(const Architecture& architecture) {
  Architecture copy = architecture;
  std::vector<ModuleId> modules = mapped(norms_of(copy), &PlacedNorm::module);
  for (int64_t n = 0; n < std::ssize(copy.blocks); ++n) {
    if (copy.blocks[n].attention.qk_norm) {
      modules.push_back(in_attention(n, Slot::query_norm));
      modules.push_back(in_attention(n, Slot::key_norm));
    }
  }
  return modules;
}

class Folding {
 public:
  Folding(const Model& model, bool may_untie)
      : proposal_{.after = model},
        before_(model),
        may_untie_(may_untie),
        limit_(unseen_share(model.has_weights() ? finest_roundoff(model.weights) : 0)),
        shares_(epsilon_shares(model, limit_)) {
    Architecture copy = model.architecture;
    for (const PlacedNorm& placed : norms_of(copy)) {
      if (placed.norm->kind == NormKind::scale) {
        scales_.insert(placed.module);
      }
    }
  }

  Proposal run() {
    judge_norms();
    // One that is gone may free the one before it.
    for (bool again = true; again;) {
      again = false;
      obstacles_.clear();
      Architecture copy = proposal_.after.architecture;
      for (const PlacedNorm& placed : norms_of(copy)) {
        again = (constant_.contains(placed.module) && take(placed.module)) || again;
      }
    }
    for (int64_t n = 0; n < std::ssize(before_.architecture.blocks); ++n) {
      take_of_heads(n);
    }
    proposal_.preconditions.insert(proposal_.preconditions.end(), obstacles_.begin(), obstacles_.end());
    if (proposal_.preconditions.empty()) {
      proposal_.preconditions.push_back(
          {.where = "model", .expected = "a norm whose epsilon dwarfs its input", .found = "it has no norms"});
    }
    if (proposal_.applies) {
      say_what_it_is();
    }
    proposal_.roundings = walk_.roundings();
    return std::move(proposal_);
  }

 private:
  static const char* source_of(const EpsilonShare& share) {
    return share.for_all ? "for all inputs" : "on sampled inputs";
  }

  bool is_scale(const ModuleId& module) const { return scales_.contains(module); }

  // Which norms are constants.
  void judge_norms() {
    for (const ModuleId& module : all_norms(before_.architecture)) {
      if (is_scale(module)) {
        constant_.insert(module);
        continue;
      }
      const auto share = shares_.find(module);
      if (share == shares_.end()) {
        proposal_.preconditions.push_back(
            in_the_way(module, dwarfing_epsilon, "it is a norm, with an epsilon of 1 or less", ""));
      } else if (before_.has_weights() && !(share->second.most <= limit_)) {
        Precondition failed = in_the_way(module, dwarfing_epsilon,
                                         std::isfinite(share->second.most)
                                             ? fmt::format("the variance moves what it writes by {:.2g} of itself {}",
                                                           share->second.most, source_of(share->second))
                                             : "nothing bounds the variance for all inputs",
                                         fmt::format("none: above {:.2g}, a quarter of a rounding, it counts", limit_));
        failed.measured = share->second.most;
        failed.limit = limit_;
        proposal_.preconditions.push_back(std::move(failed));
      } else {
        constant_.insert(module);
        most_ = std::max(most_, share->second.most);
        for_all_ = for_all_ && share->second.for_all;
      }
    }
  }

  bool take(const ModuleId& module) {
    Model& model = proposal_.after;
    Streams streams = find_streams(model.architecture);
    std::optional<NormBetween> at = norm_between(model.architecture, streams, module);
    if (!at) {
      obstacles_.push_back(in_the_way(module, "a norm that runs", "it is inside the first-layer table", ""));
      return false;
    }
    AffineExit exit = exit_of(model.architecture, streams, *at);
    const int64_t before = count(model.architecture).total;
    const bool unties = exit.tied && may_untie_;
    Model changed = unties ? untied(model) : model;
    if (unties) {
      streams = find_streams(changed.architecture);
      at = norm_between(changed.architecture, streams, module);
      exit = exit_of(changed.architecture, streams, *at);
    }
    if (exit.way == AffineExit::Way::none) {
      obstacles_.push_back(
          in_the_way(module, exit.expected, exit.found, exit.tied ? cost_of_untying(*at) : exit.remedy));
      return false;
    }
    if (changed.has_weights()) {
      exit.way == AffineExit::Way::readers ? fold_into_readers(changed, streams.all[at->writes], *at)
                                           : fold_into_writers(changed, streams.all[at->reads], *at, exit);
    }
    take_out(changed.architecture, streams, *at, exit);
    drop_tensors(changed, module);
    model = std::move(changed);
    if (unties) {
      proposal_.notes.push_back(fmt::format("the head has a matrix of its own, to take {}: {} parameters more",
                                            name_of(module), with_commas(count(model.architecture).total - before)));
    }
    note_taken(module);
    return true;
  }

  std::string cost_of_untying(const NormBetween& at) const {
    const Architecture& a = proposal_.after.architecture;
    const int64_t gone = (at.norm.gain ? a.width : 0) + (at.norm.bias ? a.width : 0);
    const int64_t more = a.vocab * token_width(a) + (at.norm.bias && !a.head.bias ? a.vocab : 0) - gone;
    return fmt::format("head=untie, which costs {} parameters", with_commas(more));
  }

  void take_of_heads(int64_t n) {
    const ModuleId query = in_attention(n, Slot::query_norm), key = in_attention(n, Slot::key_norm);
    if (!constant_.contains(query) || !constant_.contains(key)) {
      return;
    }
    Model& model = proposal_.after;
    const std::string obstacle = obstacle_of_head_norms(model.architecture, n);
    if (!obstacle.empty()) {
      obstacles_.push_back(in_the_way(query, "a query and a key matrix", obstacle, "none: only a matrix can take it"));
      return;
    }
    const Attention t = model.architecture.blocks[n].attention;
    if (model.has_weights()) {
      fold_into_heads(model, in_attention(n, Slot::query), query, t, t.heads);
      fold_into_heads(model, in_attention(n, Slot::key), key, t, t.kv_heads);
    }
    take_out_head_norms(model.architecture, n);
    for (const ModuleId& module : {query, key}) {
      drop_tensors(model, module);
      note_taken(module);
    }
  }

  Precondition what_was_taken(const ModuleId& module) const {
    if (is_scale(module)) {
      return in_the_way(module, scale_as_map, "it is a scale, which is exactly one", "");
    }
    if (!before_.has_weights()) {
      return in_the_way(module, dwarfing_epsilon, "it does, unless the weights say otherwise", "");
    }
    const EpsilonShare& share = shares_.at(module);
    Precondition held = in_the_way(
        module, dwarfing_epsilon,
        fmt::format("the variance moves what it writes by {:.2g} of itself at most, {}", share.most, source_of(share)),
        "");
    held.measured = share.most;
    held.limit = limit_;
    return held;
  }

  void note_taken(const ModuleId& module) {
    proposal_.preconditions.push_back(what_was_taken(module));
    proposal_.preconditions.back().holds = true;
    taken_scales_ += is_scale(module) ? 1 : 0;
    walk_.step(1, module.block ? runs_of(before_.architecture, *module.block) : 1);
    proposal_.applies = true;
  }

  void say_what_it_is() {
    if (taken_scales_ > 0) {
      proposal_.notes.insert(proposal_.notes.begin(),
                             fmt::format("{} of {} scales are in the matrices beside them, which is exact",
                                         taken_scales_, scales_.size()));
    }
    const size_t all = all_norms(before_.architecture).size() - scales_.size();
    const size_t constant = constant_.size() - scales_.size();
    if (constant == 0) {
      return;
    }
    std::string text = fmt::format("{} of {} norms do nothing but centre and scale: ", constant, all);
    if (!before_.has_weights()) {
      text += "their epsilon is above 1, if what they are given is small beside it";
    } else {
      text += fmt::format("their epsilon is {:.2g} times the variance or more, {}", 1 / (2 * most_),
                          for_all_ ? "for all inputs" : "on sampled inputs, so nothing is proved for all");
    }
    proposal_.notes.insert(proposal_.notes.begin(), text);
  }

  Proposal proposal_;
  const Model& before_;
  bool may_untie_;
  double limit_;
  std::map<ModuleId, EpsilonShare> shares_;
  std::set<ModuleId> constant_, scales_;
  int64_t taken_scales_ = 0;
  std::vector<Precondition> obstacles_;
  RoundingWalk walk_;
  double most_ = 0;
  bool for_all_ = true;
};

Proposal propose(const Model& model, const Options& options, const std::optional<Budget>&) {
  return Folding(model, options.at("head") == "untie").run();
}

}  // namespace

const Pass& pass_fold_constant_norm() {
  static const Pass pass{
      .id = "fold_constant_norm",
      .theorem = "(x - m) g / √(v + ε) + c = x C diag(g) / √ε + c, off by v/2ε of itself, for ε far above v",
      .saves = "width for each gain, width for each norm bias; less biases that have to be created",
      .reference = "Baroni et al. 2025, whose models have such norms",
      .preconditions = {"an epsilon above 1 that dwarfs the variance: v/2ε is below what the stored type sees; or a "
                        "scale, which normalises nothing",
                        "readers that are separate matrices (head=untie: a tied head becomes one), or a sublayer or "
                        "an embedding that the norm alone reads",
                        "a norm bias needs biases, which are created"},
      .options = {{"head", "keep|untie", "keep"}},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
