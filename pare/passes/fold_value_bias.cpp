// Theorem: A (X V + 1 b_V) O + b_O = A X V O + (b_V O + b_O), since the rows of attention sum to one: A 1 = 1.
// Before: b_V, b_O.   After: b_O* = b_O + b_V O, no b_V. A key/value head's bias is read by every query head of its
// group.
//
// Proof: softmax rows sum to one, so each head writes A_h X V_h + b_V,h; the output matrix is linear.
//
// Preconditions: P1 no gate and no shaped attention (the rows no longer sum to one); P2 values are not collapsed or
// looked up.
// Where there is no b_O it has to be created: width - kv_heads · head_width parameters more, which may be growth.
// Exactness: one product, no inverse.
// Order: after fold_norm_gain, which may fold into b_V; before merge_skipless, which moves b_O on.
// Reference: docs/theorems/fold_value_bias.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/algebra/amplification.h"
#include "pare/algebra/operations.h"
#include "pare/algebra/prediction.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// b_V as all query heads together see it.
at::Tensor seen_by_queries(const at::Tensor& value_bias, const Attention& t) {
  return value_bias.view({t.kv_heads, 1, t.head_width})
      .expand({t.kv_heads, t.heads / t.kv_heads, t.head_width})
      .reshape({-1});
}

void fold(Model& model, const std::string& name, const Attention& t, int64_t width) {
  if (!model.has_weights()) {
    return;
  }
  const Weight value = model.weights.at(name + "value.bias");
  Formula formula = t.heads == t.kv_heads ? value.formula() : Formula::enclosed("to_queries(", value.formula(), ")");
  std::vector<Weight> inputs = {value};
  const auto matrix = model.weights.find(name + "output.weight"), old = model.weights.find(name + "output.bias");
  const bool has_matrix = matrix != model.weights.end(), has_old = old != model.weights.end();
  if (has_matrix) {
    formula = formula * matrix->second.formula();
    inputs.push_back(matrix->second);
  }
  if (has_old) {
    formula = old->second.formula() + formula;
    inputs.push_back(old->second);
  }
  model.weights[name + "output.bias"] = computed({width}, formula, inputs, [=](const std::vector<at::Tensor>& in) {
    const at::Tensor seen = seen_by_queries(in[0], t);
    const at::Tensor added = has_matrix ? at::mv(in[1], seen) : seen;
    return has_old ? in.back() + added : added;
  });
  model.weights.erase(name + "value.bias");
}

Proposal propose(const Model& model, const Options&, const std::optional<Budget>&) {
  Proposal proposal{.after = model};
  const Architecture& a = model.architecture;
  std::vector<Block>& blocks = proposal.after.architecture.blocks;
  int64_t created = 0;
  RoundingWalk walk;
  for (int64_t n = 0; n < std::ssize(blocks); ++n) {
    Attention& t = blocks[n].attention;
    const std::string name = fmt::format("blocks.{}.attention.", n), where = name + "value.bias";
    const bool tabled = is_tabled(a, n);
    if (!t.bias.value || tabled) {
      proposal.preconditions.push_back({.where = where,
                                        .block = n,
                                        .expected = "a value bias",
                                        .found = tabled ? "it is inside the first-layer table" : "there is none"});
      continue;
    }
    if (t.gate) {
      proposal.preconditions.push_back({.where = where,
                                        .block = n,
                                        .expected = "no gate",
                                        .found = "a gate scales each head after attention",
                                        .remedy = "none: gated rows do not sum to one"});
      continue;
    }
    if (t.shaped) {
      proposal.preconditions.push_back({.where = where,
                                        .block = n,
                                        .expected = "attention that is not shaped",
                                        .found = "rows that sum to alpha + beta - gamma of their head",
                                        .remedy = "none: only attention rows that sum to one leave a bias unchanged"});
      continue;
    }
    proposal.preconditions.push_back(
        {.where = where, .block = n, .expected = "attention rows that sum to one", .found = "they do", .holds = true});
    created += t.bias.output ? 0 : a.width;
    fold(proposal.after, name, t, a.width);
    t.bias.value = false;
    t.bias.output = true;
    walk.step(amplification(model, weight_of(in_attention(n, Slot::output))), runs_of(a, n));
    proposal.applies = true;
  }
  proposal.roundings = walk.roundings();
  if (created > 0) {
    proposal.notes.push_back(fmt::format("output biases have to be created: {} parameters more", with_commas(created)));
  }
  return proposal;
}

}  // namespace

const Pass& pass_fold_value_bias() {
  static const Pass pass{
      .id = "fold_value_bias",
      .theorem = "A(XV + 1b_V)O + b_O = AXVO + (b_V O + b_O), since A1 = 1",
      .saves = "kv_heads · head_width in each layer that has an output bias",
      .reference = "no paper: rows of attention sum to one; beside proposition 4.1 of Karbevski and Mijoski 2025",
      .preconditions = {"no gate, and attention that is not shaped", "a stored value bias"},
      .options = {},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
