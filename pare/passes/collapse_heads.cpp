// Theorem (paper 0, proposition 4.1): a head sees queries and keys only as a product, and writes values only through
// its output: (x Q + b_Q)(y K + b_K)ᵀ = x (Q Kᵀ) yᵀ + y (K b_Qᵀ) + (x Q + b_Q) b_Kᵀ, and A (Y V + 1 b_V) O = A Y (V O)
// + b_V O. Before: Q, b_Q, K, b_K and V, b_V, O, b_O.   After: W_QK = Q Kᵀ and b_Q Kᵀ for each query head, no b_K; W_VO
// = V O for each query head, b_O + Σ b_V O, no b_V. A query head takes the key and the value of its group.
//
// Proof: matrices multiply associatively. The last term of the scores is one number for every key y, which softmax
// ignores; rows of A sum to one.
//
// Preconditions: P1 queries and keys (values and outputs) are matrices of their own, and what is cached are keys and
// values; P2 of queries and keys: no RoPE, no QK-norm between the factors, and with a b_K no softcap; P3 of values:
// with a b_V neither a gate nor shaped attention; P4 the product is smaller than its factors, unless growth is asked
// for
// (`pairs=all`, `qk`, `vo`).
// Exactness: one product, no inverse.
// Order: after what removes factors for less, before shrink_head_pairs, which takes less of the same pairs.
// Reference: docs/theorems/collapse_heads.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/algebra/amplification.h"
#include "pare/algebra/operations.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

enum class Product { scores, values };

struct ProductSite {
  int64_t block = 0;
  Product product = Product::scores;

  ModuleId first() const { return in_attention(block, product == Product::scores ? Slot::query : Slot::value); }
  ModuleId second() const { return in_attention(block, product == Product::scores ? Slot::key : Slot::output); }
  ModuleId both() const {
    return in_attention(block, product == Product::scores ? Slot::query_key : Slot::value_output);
  }
  std::string where() const {
    return fmt::format("blocks.{}.attention.{}", block, product == Product::scores ? "qk" : "vo");
  }
};

int64_t factor_parameters(const Attention& t, int64_t width, Product product) {
  const int64_t kv = t.kv_heads * t.head_width, rows = t.heads * t.head_width;
  const bool scores = product == Product::scores;
  const int64_t biases = scores ? (t.bias.query ? rows : 0) + (t.bias.key ? kv : 0) : (t.bias.value ? kv : 0);
  return (rows + kv) * width + biases;
}

int64_t product_parameters(const Attention& t, int64_t width, Product product) {
  const int64_t bias =
      product == Product::scores ? (t.bias.query ? t.heads * width : 0) : (t.bias.value && !t.bias.output ? width : 0);
  return t.heads * width * width + bias;
}

std::optional<Precondition> product_obstacle(const Architecture& a, const ProductSite& site, bool may_grow) {
  const Attention& t = a.blocks[site.block].attention;
  const bool scores = site.product == Product::scores;
  const auto fails = [&](const char* expected, std::string found, const char* remedy) {
    return Precondition{
        .where = site.where(), .block = site.block, .expected = expected, .found = std::move(found), .remedy = remedy};
  };
  if (is_tabled(a, site.block)) {
    return fails("two matrices", "they are inside the first-layer table", "");
  }
  if ((scores ? t.scores : t.values) == Form::collapsed) {
    return fails("two matrices", "they are one already", "");
  }
  const Projection &first = scores ? t.query : t.value, &second = scores ? t.key : t.output;
  if (scores && is<SameAsKey>(first)) {
    return fails("two matrices", "the query is the key", "none: one matrix is smaller than its square");
  }
  if (!is<Dense>(first) || !is<Dense>(second)) {
    const ModuleId missing = is<Dense>(first) ? site.second() : site.first();
    return fails("two matrices", fmt::format("{} is not a whole matrix of its own", name_of(missing)), "");
  }
  if (is<FromKey>(t.value) || is<FromValue>(t.key) || t.remembered == Remembered::inputs) {
    return fails("a cache of keys and values", "one of them is computed from what is cached",
                 "collapse_heads instead of cache_keys_only");
  }
  if (scores && t.rope) {
    return fails("no RoPE", fmt::format("RoPE rotates {} of {} dimensions", t.rope->width, t.head_width),
                 "none: the rotation stands between the factors");
  }
  if (scores && t.qk_norm) {
    return fails("no QK-norm", "queries and keys are normalised", "none: the norm stands between the factors");
  }
  if (scores && t.softcap && t.bias.key) {
    return fails("no score softcap with a key bias", fmt::format("softcap {}", *t.softcap),
                 "none: a cap is not shift invariant, so the bias would have to stay");
  }
  if (!scores && t.gate && t.bias.value) {
    return fails("no gate with a value bias", "a gate scales each head after attention",
                 "none: gated rows do not sum to one, so the bias would have to stay");
  }
  if (!scores && t.shaped && t.bias.value) {
    return fails("no shaped attention with a value bias", "its rows sum to alpha + beta - gamma",
                 "none: the bias of each head would have to stay");
  }
  const int64_t factors = factor_parameters(t, a.width, site.product);
  const int64_t product = product_parameters(t, a.width, site.product);
  if (!may_grow && product >= factors) {
    return fails("a product smaller than its factors",
                 fmt::format("{} parameters in place of {}", with_commas(product), with_commas(factors)),
                 "fewer and wider heads, in training; pairs=all does it anyway");
  }
  return std::nullopt;
}

// One matrix for each query head, [heads, k, n]: those of a key/value head once for every query head of its group.
at::Tensor for_queries(const at::Tensor& rows, const Attention& t) {
  const at::Tensor heads = rows.reshape({-1, t.head_width, rows.numel() / rows.size(0)});
  return heads.repeat_interleave(t.heads / heads.size(0), 0);
}

Formula by_query(const Formula& formula) {
  return Formula::enclosed("heads(", formula, ")");
}

void collapse_scores(Model& model, const ProductSite& site, const Attention& t) {
  const int64_t width = model.architecture.width;
  const Weight query = model.weights.at(name_of(weight_of(site.first())));
  const Weight key = model.weights.at(name_of(weight_of(site.second())));
  const Formula keys = by_query(key.formula()).transposed();
  model.weights[name_of(weight_of(site.both()))] = computed(
      {t.heads, width, width}, by_query(query.formula()) * keys, {query, key}, [=](const std::vector<at::Tensor>& in) {
        return at::matmul(for_queries(in[0], t).transpose(1, 2), for_queries(in[1], t));
      });
  if (t.bias.query) {
    const Weight bias = model.weights.at(name_of(bias_of(site.first())));
    model.weights[name_of(bias_of(site.both()))] = computed(
        {t.heads, width}, by_query(bias.formula()) * keys, {bias, key}, [=](const std::vector<at::Tensor>& in) {
          return at::matmul(in[0].view({t.heads, 1, t.head_width}), for_queries(in[1], t)).squeeze(1);
        });
  }
  for (const ModuleId& module : {site.first(), site.second()}) {
    model.weights.erase(name_of(weight_of(module)));
    model.weights.erase(name_of(bias_of(module)));
  }
}

// b_O + Σ b_V O, as fold_value_bias has it.
void move_value_bias(Model& model, const ProductSite& site, const Attention& t, const Weight& output) {
  const Weight value = model.weights.at(name_of(bias_of(site.first())));
  const std::string name = name_of(bias_of(site.second()));
  const Formula seen = t.heads == t.kv_heads ? value.formula() : Formula::enclosed("to_queries(", value.formula(), ")");
  Formula formula = seen * output.formula();
  std::vector<Weight> inputs = {value, output};
  if (t.bias.output) {
    formula = model.weights.at(name).formula() + formula;
    inputs.push_back(model.weights.at(name));
  }
  model.weights[name] = computed({model.architecture.width}, formula, inputs, [=](const std::vector<at::Tensor>& in) {
    const at::Tensor moved = at::mv(in[1], for_queries(in[0], t).reshape({-1}));
    return in.size() == 3 ? in[2] + moved : moved;
  });
  model.weights.erase(name_of(bias_of(site.first())));
}

void collapse_values(Model& model, const ProductSite& site, const Attention& t) {
  const int64_t width = model.architecture.width;
  const Weight value = model.weights.at(name_of(weight_of(site.first())));
  const Weight output = model.weights.at(name_of(weight_of(site.second())));
  if (t.bias.value) {
    move_value_bias(model, site, t, output);
  }
  model.weights[name_of(weight_of(site.both()))] = computed(
      {t.heads, width, width}, by_query(value.formula()) * by_query(output.formula().transposed()).transposed(),
      {value, output}, [=](const std::vector<at::Tensor>& in) {
        return at::matmul(for_queries(in[0], t).transpose(1, 2), for_queries(in[1].t(), t));
      });
  model.weights.erase(name_of(weight_of(site.first())));
  model.weights.erase(name_of(weight_of(site.second())));
}

std::vector<Product> asked_products(const std::string& word) {
  return word == "vo"   ? std::vector{Product::values}
         : word == "qk" ? std::vector{Product::scores}
                        : std::vector{Product::scores, Product::values};
}

Proposal propose(const Model& model, const Options& options, const std::optional<Budget>&) {
  Proposal proposal{.after = model};
  const Architecture& a = model.architecture;
  const std::string& asked = options.at("pairs");
  RoundingWalk walk;
  int64_t more = 0;
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    for (const Product product : asked_products(asked)) {
      const ProductSite site{.block = n, .product = product};
      if (std::optional<Precondition> failed = product_obstacle(a, site, asked != "saving")) {
        proposal.preconditions.push_back(*std::move(failed));
        continue;
      }
      Attention& t = proposal.after.architecture.blocks[n].attention;
      const bool scores = product == Product::scores;
      proposal.preconditions.push_back({.where = site.where(),
                                        .block = n,
                                        .expected = "nothing between the factors",
                                        .found = "there is nothing",
                                        .holds = true});
      more += product_parameters(t, a.width, product) - factor_parameters(t, a.width, product);
      if (model.has_weights()) {
        scores ? collapse_scores(proposal.after, site, t) : collapse_values(proposal.after, site, t);
      }
      if (scores) {
        t.scores = Form::collapsed;
        t.bias.key = false;
      } else {
        t.values = Form::collapsed;
        t.bias.output = t.bias.output || t.bias.value;
        t.bias.value = false;
      }
      const double amplified = amplification(model, site.first(), site.second());
      amplify(proposal.after, weight_of(in_attention(n, scores ? Slot::query_key : Slot::value_output)), amplified);
      walk.step(amplified, runs_of(a, n));
      proposal.applies = true;
    }
  }
  proposal.roundings = walk.roundings();
  if (more > 0) {
    proposal.notes.push_back(
        fmt::format("products are larger than their factors: {} parameters more", with_commas(more)));
  }
  return proposal;
}

}  // namespace

const Pass& pass_collapse_heads() {
  static const Pass pass{
      .id = "collapse_heads",
      .theorem = "(xQ)(yK)' = x (QK') y' and (A Y V) O = A Y (V O), one square matrix for each head and pair",
      .saves = "(heads + kv_heads) · head_width · width - heads · width² for each pair, where that is positive",
      .reference = "W_K, W_V is Probably All You Need (Karbevski and Mijoski 2025), proposition 4.1",
      .preconditions = {"queries and keys, values and outputs are matrices of their own",
                        "of queries and keys: no RoPE, no QK-norm, with a key bias no softcap",
                        "of values: with a value bias no gate and no shaped attention",
                        "the product is smaller, or growth is asked for"},
      .options = {{"pairs", "saving|all|qk|vo", "saving"}},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
