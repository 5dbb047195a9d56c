// Theorem (Graef, February 2024): where the first layer sees nothing but the token t, its input x_t and its projections
//   q_t = n(x_t) W_Q + b_Q,  k_t = n(x_t) W_K + b_K,  v_t = n(x_t) W_V + b_V
// are functions of t, so a row [x_t, q_t, k_t, v_t] of a table gives all of them.
// Before: embeddings, their norm and factor, the first norm, W_Q, W_K, W_V and biases.   After: one table of V rows,
// and the token table where a tied head needs it.
//
// Proof: nothing between the token and the projections depends on its place. RoPE, QK-norm and ALiBi come after them.
//
// Preconditions: P1 no positions, types, patches or masked tokens in the embedding; P2 the first block runs once; P3 it
// is serial and has no gate, which read the same input; P4 factored scores and values, full pairs, a cache of keys and
// values.
// Exactness: the projections are rounded once, where each product was rounded before.
// Order: last: what is inside the table nobody can fold into or remove any more.
// Reference: docs/theorems/precompute_first_layer.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>

#include "pare/algebra/amplification.h"
#include "pare/algebra/operations.h"
#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/model/activation.h"
#include "pare/model/norm.h"
#include "pare/support/mapped.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

std::vector<Precondition> conditions_of(const Architecture& a) {
  const int64_t first = layer_blocks(a).front();
  const Block& block = a.blocks[first];
  const Attention& t = block.attention;
  const std::string name = fmt::format("blocks.{}", first);
  const auto embedding = [](bool holds, const char* where, const char* expected, const char* found) {
    return Precondition{.where = where,
                        .expected = expected,
                        .found = holds ? "there are none" : found,
                        .holds = holds,
                        .remedy = holds ? "" : "none: the first projections see more than the token"};
  };
  const auto in_block = [&](bool holds, const std::string& where, const char* expected, std::string found,
                            const char* remedy) {
    return Precondition{.where = where,
                        .block = first,
                        .expected = expected,
                        .found = std::move(found),
                        .holds = holds,
                        .remedy = holds ? "" : remedy};
  };
  const bool parallel = block.wiring == Wiring::parallel && block.mlp;
  const int64_t runs = runs_of(a, first);
  std::vector<Precondition> conditions = {
      embedding(a.embedding.position == Position::none, "embed.position", "no positions before the first layer",
                a.embedding.position == Position::learned ? "learned positions" : "sinusoidal positions"),
      embedding(a.embedding.types == 0, "embed.type", "no token types", "their rows are added to the token's"),
      embedding(!a.embedding.patch, "embed.patch", "tokens", "patches of an image"),
      in_block(runs == 1, name, "a first block that runs once", fmt::format("{} layers run it", runs),
               "none: the other layers need its projections"),
      in_block(block.wiring == Wiring::serial, name, "a serial block",
               parallel ? "its MLP reads the same input" : "a parallel one",
               "train the model with a serial first block"),
      in_block(!t.gate, name + ".attention.gate", "no gate", t.gate ? "it reads the same input" : "there is none",
               "train the first block without a gate"),
      in_block(has_plain_keys_and_values(t), name + ".attention", "plain keys and values, both cached",
               has_plain_keys_and_values(t) ? "they are" : "they are collapsed, shrunk or computed from each other",
               "precompute_first_layer before the pass that made them so"),
  };
  if (a.embedding.masked) {
    conditions.push_back(embedding(false, "embed.masked", "tokens that count as they are",
                                   "how many of a text are masked decides what each counts"));
  }
  return conditions;
}

// A row is computed once in numbers and once in words: the same derivation over two kinds of values.
class InNumbers {
 public:
  InNumbers(const std::vector<TensorId>& ids, const std::vector<at::Tensor>& tensors) {
    for (size_t i = 0; i < ids.size(); ++i) {
      tensors_[ids[i]] = tensors[i];
    }
  }
  using Value = at::Tensor;
  bool has(const TensorId& id) const { return tensors_.contains(id); }
  at::Tensor at(const TensorId& id) const { return has(id) ? tensors_.at(id) : at::Tensor(); }
  at::Tensor scaled(double scale, const at::Tensor& x) const { return scale * x; }
  at::Tensor times(const at::Tensor& x, const at::Tensor& matrix) const { return at::matmul(x, matrix.t()); }
  at::Tensor activated(Activation activation, const at::Tensor& x) const { return activate(activation, x); }
  at::Tensor normed(const Norm& norm, const ModuleId& module, const at::Tensor& x) const {
    const at::Tensor gain = at(weight_of(module));
    return NormLayer{norm, gain.defined() ? gain + norm.offset : gain, at(bias_of(module)),
                     at({module, TensorKind::alpha})}(x);
  }
  at::Tensor named(const char*, const at::Tensor& x) const { return x; }

 private:
  std::map<TensorId, at::Tensor> tensors_;
};

class InWords {
 public:
  InWords(const std::vector<TensorId>& ids, const std::vector<Weight>& weights, int64_t block) : block_(block) {
    for (size_t i = 0; i < ids.size(); ++i) {
      formulas_[ids[i]] = weights[i].formula();
    }
  }
  using Value = Formula;
  bool has(const TensorId& id) const { return formulas_.contains(id); }
  Formula at(const TensorId& id) const { return formulas_.at(id); }
  Formula scaled(double scale, const Formula& x) const { return Formula(fmt::format("{}", scale)) * x; }
  Formula times(const Formula& x, const Formula& matrix) const { return x * matrix; }
  Formula activated(Activation activation, const Formula& x) const {
    return Formula::enclosed(fmt::format("{}(", word(activation)), x, ")");
  }
  Formula normed(const Norm& norm, const ModuleId& module, const Formula& x) const {
    Formula y = bare_norm(norm, module, x);
    if (has(weight_of(module))) {
      const Formula gain = at(weight_of(module));
      y = y * Formula::diagonal(norm.offset == 0 ? gain : gain + Formula(fmt::format("{}", norm.offset)));
    }
    return has(bias_of(module)) ? y + at(bias_of(module)) : y;
  }
  Formula named(const char* letter, const Formula& x) const { return Formula::symbol(letter, block_, x); }

 private:
  Formula bare_norm(const Norm& norm, const ModuleId& module, const Formula& x) const {
    switch (norm.kind) {
      case NormKind::dyt:
        return Formula::enclosed("tanh(", at({module, TensorKind::alpha}) * x, ")");
      case NormKind::scale:
        return scaled(norm.factor, x);
      default:
        return Formula::enclosed(norm.kind == NormKind::rms ? "rms_norm(" : "layer_norm(", x,
                                 fmt::format(", {})", norm.epsilon));
    }
  }
  std::map<TensorId, Formula> formulas_;
  int64_t block_;
};

template <class Values, class Value = typename Values::Value>
Value linear(const Values& in, const ModuleId& module, Value x) {
  if (in.has(weight_of(module))) {  // else it is the identity
    x = in.times(x, in.at(weight_of(module)));
  }
  return in.has(bias_of(module)) ? x + in.at(bias_of(module)) : x;
}

template <class Values, class Value = typename Values::Value>
Value embedded(const Values& in, const Embedding& e) {
  Value x = in.at(weight_of(token_table));
  if (e.scale != 1) {
    x = in.scaled(e.scale, x);
  }
  const ModuleId projection = in_embedding(Slot::projection);
  if (e.factor && e.factor_scope == FactorScope::token) {
    x = linear(in, projection, x);
  }
  if (e.norm) {
    x = in.normed(*e.norm, in_embedding(Slot::norm), x);
  }
  return e.factor && e.factor_scope == FactorScope::sum ? linear(in, projection, x) : x;
}

// [x, query, key, value]
template <class Values, class Value = typename Values::Value>
std::vector<Value> row_of(const Values& in, const Embedding& embedding, const Attention& t, int64_t n) {
  const Value x = in.named("X", embedded(in, embedding));
  const Value h =
      t.norm && t.norm->place == NormPlace::pre ? in.named("N", in.normed(*t.norm, in_attention(n, Slot::norm), x)) : x;
  const Value key = linear(in, in_attention(n, Slot::key), h), value = linear(in, in_attention(n, Slot::value), h);
  if (is<SameAsKey>(t.query)) {
    return {x, key, key, value};
  }
  Value read = h;
  if (const Nonlinear* nonlinear = std::get_if<Nonlinear>(&t.query)) {
    const Value up = linear(in, in_attention(n, Slot::query_up), h);
    read = h + linear(in, in_attention(n, Slot::query_down), in.activated(nonlinear->activation, up));
  }
  return {x, linear(in, in_attention(n, Slot::query), read), key, value};
}

// The table, of all that the model stores no more, and of the token table.
Weight table_of(const Model& model, const TensorTable& kept, int64_t block, const Shape& shape) {
  std::vector<TensorId> ids = {weight_of(token_table)};
  for (const TensorSpec& spec : tensor_table(model.architecture)) {
    if (!kept.contains(spec.id) && spec.id != ids.front()) {
      ids.push_back(spec.id);
    }
  }
  const std::vector<Weight> inputs = mapped(ids, [&](const TensorId& id) { return model.weights.at(name_of(id)); });
  const Embedding embedding = model.architecture.embedding;
  const Attention t = model.architecture.blocks[block].attention;
  const std::vector<Formula> parts = row_of(InWords(ids, inputs, block), embedding, t, block);
  const int64_t kv = t.kv_heads * t.head_width;
  const int64_t begins[] = {0, model.architecture.width, shape[1] - 2 * kv, shape[1] - kv};
  const auto placed = [&](size_t i) { return parts[i] * Formula(fmt::format("columns({}, {})", begins[i], shape[1])); };
  return computed(
      shape, placed(0) + placed(1) + placed(2) + placed(3), inputs,
      [=](const std::vector<at::Tensor>& in) { return at::cat(row_of(InNumbers(ids, in), embedding, t, block), 1); },
      Weight::Rows::each);
}

Proposal propose(const Model& model, const Options&, const std::optional<Budget>&) {
  Proposal proposal{.after = model};
  const Architecture& a = model.architecture;
  if (a.first_layer == FirstLayer::table) {
    proposal.preconditions.push_back(
        {.where = "embed.table", .expected = "a first layer that computes", .found = "it is a table already"});
    return proposal;
  }
  proposal.preconditions = conditions_of(a);
  for (const Precondition& condition : proposal.preconditions) {
    if (!condition.holds) {
      return proposal;
    }
  }
  const int64_t block = layer_blocks(a).front();
  Architecture& after = proposal.after.architecture;
  after.first_layer = FirstLayer::table;
  const TensorTable kept = tensor_table(after);
  const TensorSpec& table = kept.at(weight_of(in_embedding(Slot::table)));
  if (model.has_weights()) {
    Weights& weights = proposal.after.weights;
    std::erase_if(weights, [&](const auto& entry) { return !kept.contains(entry.first); });
    weights[table.name] = table_of(model, kept, block, table.shape);
  }
  const Embedding& e = a.embedding;
  RoundingWalk walk;
  const double amplified = amplification(model, weight_of(token_table));
  amplify(proposal.after, weight_of(in_embedding(Slot::table)), amplified);
  walk.step(amplified);
  walk.step(e.scale != 1 || e.norm || e.factor ? amplified : 0);  // else the stream starts from the same numbers
  proposal.roundings = walk.roundings();
  const int64_t size = element_count(table.shape), gone = count(a).total - (count(after).total - size);
  proposal.notes.push_back(
      fmt::format("a table of {} parameters for {}: a token reads one row of {} where the first layer had to multiply",
                  with_commas(size), with_commas(gone), with_commas(table.shape[1])));
  proposal.applies = true;
  return proposal;
}

}  // namespace

const Pass& pass_precompute_first_layer() {
  static const Pass pass{
      .id = "precompute_first_layer",
      .theorem = "x, n(x)Q, n(x)K, n(x)V of the first layer depend on the token alone: one row of a table",
      .saves =
          "no parameters: the first layer's products; the table has vocab · (heads + 2 kv_heads) · head_width more",
      .reference = "Transformer tricks: Precomputing the first layer (Graef February 2024)",
      .preconditions = {"no positions, types or patches in the embedding", "the first block runs once",
                        "it is serial and has no gate", "its keys and values are plain and cached"},
      .options = {},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
