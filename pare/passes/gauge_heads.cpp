// Theorem: attention sees queries and keys only through x̂ A (ŷ B)ᵀ = x̂ (A Bᵀ) ŷᵀ, values and outputs only through
// x̂ (A Bᵀ), x̂ = [x, 1]. So A D, B D⁻ᵀ is the same head for every D of its gauge, and the sum over heads has no order.
// Before: any A, B of each key/value head, heads in any order.   After: the one representative of
// pare/algebra/canonical_heads.h, the same for every member of the orbit.
//
// Proof: A D (B D⁻ᵀ)ᵀ = A Bᵀ. What stands between A and B decides which D there are. Nothing (values and outputs;
// queries and keys): all of GL(k), one D for the heads that share a key/value head. RoPE turns planes: those D that
// commute with it, a complex number for each plane, and GL on dimensions that do not turn. A query that is the key, and
// an RMSNorm of queries and keys (its gains uniform where D mixes): D D' = I besides. Heads change places together with
// their rows in query, key, value and gate, their columns in output, and those gains that are one head's alone.
//
// Preconditions: P1 both sides are matrices of their own, whole: not the identity, nonlinear, collapsed, shrunk or
// computed from each other; P2 a norm of queries and keys is an RMSNorm without bias, its gains uniform where D mixes
// coordinates; P3 for the order: no ALiBi, whose slopes follow the heads' numbers.
// Exactness: QR and singular values, no inverse but of a D that is well conditioned: nothing is lost on badly
// conditioned heads, and rows of small numbers are as good as large ones.
// Order: after what folds into biases and what removes matrices; the representative depends on both.
// Reference: docs/theorems/gauge_heads.md

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <tuple>

#include "pare/algebra/amplification.h"
#include "pare/algebra/canonical_heads.h"
#include "pare/algebra/operations.h"

namespace pare {

namespace {

struct GaugeObstacle {
  const char *expected, *found, *remedy;
};

constexpr const char* two_matrices = "two separate, complete matrices";

std::optional<GaugeObstacle> stored_obstacle(const Attention& t, bool tabled) {
  if (tabled) {
    return GaugeObstacle{two_matrices, "they are inside the first-layer table", ""};
  }
  if (is<FromKey>(t.value) || is<FromValue>(t.key)) {
    return GaugeObstacle{two_matrices, "keys and values are computed from each other",
                         "gauge_heads before cache_keys_only"};
  }
  return std::nullopt;
}

std::optional<GaugeObstacle> value_obstacle(const Attention& t, bool tabled) {
  if (t.values == Form::collapsed) {
    return GaugeObstacle{two_matrices, "value and output are one matrix, which has no gauge", ""};
  }
  if (std::optional<GaugeObstacle> failed = stored_obstacle(t, tabled)) {
    return failed;
  }
  if (is<Shrunk>(t.value)) {
    return GaugeObstacle{two_matrices, "an identity block is cut out of the value, which fixes its gauge",
                         "gauge_heads before shrink_head_pairs"};
  }
  if (!is<Dense>(t.value) || !is<Dense>(t.output)) {
    return GaugeObstacle{two_matrices, is<Dense>(t.value) ? "the output has no matrix" : "the value has no matrix",
                         "none: the stream's basis is the head's"};
  }
  return std::nullopt;
}

// Whether rotations pass through the gains of both norms: of planes by each, of what does not turn by their product.
// Each head may have another number. Without weights by assumption.
bool pass_through_gains(const Model& model, const Attention& t, int64_t block) {
  if (!t.qk_norm->gain || !model.has_weights()) {
    return true;
  }
  const auto gains_of = [&](Slot slot) {  // [1 or heads, head_width]
    const at::Tensor gain = load_double(model.weights.at(name_of(weight_of(in_attention(block, slot)))));
    return gain.reshape({-1, t.head_width}) + t.qk_norm->offset;
  };
  const at::Tensor query = gains_of(Slot::query_norm), keys = gains_of(Slot::key_norm);
  const at::Tensor key = keys.repeat_interleave(query.size(0) / keys.size(0), 0);  // for each query head
  const int64_t turned = t.rope ? t.rope->width : 0, half = turned / 2;
  const bool halves = t.rope && t.rope->layout == RopeLayout::half;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = halves ? i : 2 * i, b = halves ? i + half : 2 * i + 1;
    if (!at::equal(query.select(1, a), query.select(1, b)) || !at::equal(key.select(1, a), key.select(1, b))) {
      return false;
    }
  }
  const at::Tensor rest = (query * key).narrow(1, turned, t.head_width - turned);
  return rest.numel() == 0 || at::equal(rest, rest.narrow(1, 0, 1).expand_as(rest));
}

std::optional<GaugeObstacle> score_obstacle(const Model& model, const Attention& t, int64_t block, bool tabled) {
  if (t.scores == Form::collapsed) {
    return GaugeObstacle{two_matrices, "query and key are one matrix, which has no gauge", ""};
  }
  if (std::optional<GaugeObstacle> failed = stored_obstacle(t, tabled)) {
    return failed;
  }
  if (is<Shrunk>(t.key)) {
    return GaugeObstacle{two_matrices, "an identity block is cut out of the key, which fixes its gauge",
                         "gauge_heads before shrink_head_pairs"};
  }
  if (is<Nonlinear>(t.query)) {
    return GaugeObstacle{two_matrices, "the query is nonlinear", "none: an activation stands between"};
  }
  if (is<Identity>(t.query) || !is<Dense>(t.key)) {
    return GaugeObstacle{two_matrices, is<Identity>(t.query) ? "the query has no matrix" : "the key has no matrix",
                         "none: the stream's basis is the head's"};
  }
  if (t.qk_norm && (t.qk_norm->kind != NormKind::rms || t.qk_norm->bias)) {
    return GaugeObstacle{"no norm of queries and keys, or an RMSNorm without bias",
                         t.qk_norm->bias ? "the norm has a bias" : "it is a LayerNorm", "none: it fixes directions"};
  }
  if (t.qk_norm && !pass_through_gains(model, t, block)) {
    return GaugeObstacle{"norms of queries and keys with uniform gains", "the gains are not uniform",
                         "none: only signs are free"};
  }
  return std::nullopt;
}

std::optional<GaugeObstacle> order_obstacle(const Attention& t, bool values_free) {
  if (t.heads == 1) {
    return GaugeObstacle{"several heads", "there is one", ""};
  }
  if (!values_free) {
    return GaugeObstacle{"heads that can change places", "value and output are not free", ""};
  }
  if (t.alibi) {
    return GaugeObstacle{"heads that can change places", "ALiBi gives each head its slope by its number",
                         "none: the order means something"};
  }
  if (!is<Dense>(t.key) || t.scores == Form::collapsed || !(is<Dense>(t.query) || is<SameAsKey>(t.query))) {
    return GaugeObstacle{"heads that can change places", "query and key are not matrices of their own",
                         "none that gives the same file: their heads stay where they are"};
  }
  return std::nullopt;
}

struct GaugeShelves {
  std::shared_ptr<Shelf> values = make_shelf(), scores = make_shelf(), orders = make_shelf();
};

// The tensors of one attention as they become canonical. What is shared is computed once, while the block is at hand.
class CanonicalBlock {
 public:
  CanonicalBlock(Model& model, int64_t block, const GaugeShelves& shelves)
      : model_(model),
        block_(block),
        t_(model.architecture.blocks[block].attention),
        width_(model.architecture.width),
        shelves_(shelves) {}

  void canonical_value() {
    const Weight value = weight(Slot::value), bias = bias_or_none(Slot::value), output = weight(Slot::output);
    const std::vector<Formula> from = {value.formula(), formula_or_zero(bias), output.formula()};
    gauge_of_values_ = Formula::symbol("D", block_, Formula::call("value_gauge", from));
    order_ = Formula::symbol("π", block_, Formula::call("head_order", from));
    const bool biased = static_cast<bool>(bias);
    std::vector<Weight> inputs = {value, output};
    if (biased) {
      inputs.push_back(bias);
    }
    const Attention t = t_;
    const int64_t left = width_ + (biased ? 1 : 0), right = width_ * share();
    values_ =
        both_sides(shelves_.values, left, right, gauge_of_values_, inputs, [=](const std::vector<at::Tensor>& in) {
          return canonical_values({side_of(t, in[0], biased ? in[2] : at::Tensor()), side_of(t, in[1].t(), {})});
        });
    set(Slot::value, values_, 0, left, left, gauge_of_values_, false);
    // The output is stored [width, heads * k]: its heads are columns.
    const Formula formula = for_queries(gauge_of_values_).inverse() * output.formula();
    at_slot(Slot::output) = computed(output.shape(), formula, {values_}, [=](const std::vector<at::Tensor>& in) {
      return stored_of(in[0].narrow(1, left, right), right / share_of(t)).t().contiguous();
    });
    value_rows_ = left;
  }

  void canonical_score(ScoreGauge gauge) {
    const bool own = !is<SameAsKey>(t_.query);
    const Weight query = own ? weight(Slot::query) : Weight(), key = weight(Slot::key);
    const Weight query_bias = own ? bias_or_none(Slot::query) : Weight(), key_bias = bias_or_none(Slot::key);
    const Formula e =
        Formula::symbol("E", block_,
                        Formula::call("key_gauge", {own ? query.formula() : Formula("0"), formula_or_zero(query_bias),
                                                    key.formula(), formula_or_zero(key_bias)}));
    std::vector<Weight> inputs = {key};
    for (const Weight& more : {query, query_bias, key_bias}) {
      if (more) {
        inputs.push_back(more);
      }
    }
    const Attention t = t_;
    const bool query_biased = static_cast<bool>(query_bias), key_biased = static_cast<bool>(key_bias);
    const int64_t one = width_ + (query_biased ? 1 : 0), left = own ? one * share() : 0;
    const int64_t right = width_ + (key_biased ? 1 : 0);
    const Weight scores = both_sides(shelves_.scores, left, right, e, inputs, [=](const std::vector<at::Tensor>& in) {
      const at::Tensor none;
      return canonical_scores(t, gauge,
                              {own ? side_of(t, in[1], query_biased ? in[2] : none) : none,
                               side_of(t, in[0], key_biased ? in.back() : none)});
    });
    if (own) {
      set(Slot::query, scores, 0, left, one, for_queries(e), false);
    }
    set(Slot::key, scores, left, right, right, e, gauge == ScoreGauge::general);
  }

  void canonical_places() {
    const Attention t = t_;
    const int64_t left = value_rows_;
    const Weight order = held(
        computed({t.heads}, order_, {values_},
                 [=](const std::vector<at::Tensor>& in) {
                   const at::Tensor sides = in[0];
                   return canonical_order(t, {sides.narrow(1, 0, left), sides.narrow(1, left, sides.size(1) - left)})
                       .to(at::kDouble);
                 }),
        shelves_.orders);
    const Formula by_head = Formula::call("by_head", {order_}), by_group = Formula::call("by_group", {order_});
    for (const Slot slot : {Slot::query, Slot::key, Slot::value}) {
      const bool of_query = slot == Slot::query;
      for (const TensorId& id : {weight_of(in_attention(block_, slot)), bias_of(in_attention(block_, slot))}) {
        permute(id, order, of_query ? by_head : by_group, of_query ? t.heads : t.kv_heads);
      }
    }
    const ModuleId gate = in_attention(block_, Slot::gate);
    for (const TensorKind kind : {TensorKind::weight, TensorKind::position, TensorKind::bias}) {
      permute({gate, kind}, order, order_, t.heads);
    }
    permute(weight_of(in_attention(block_, Slot::shape)), order, order_, t.heads);
    if (t.qk_norm_over != QkNormOver::head) {  // gains go with their heads
      const bool rows = t.qk_norm_over == QkNormOver::each_head;
      for (const TensorKind kind : {TensorKind::weight, TensorKind::bias}) {
        permute({in_attention(block_, Slot::query_norm), kind}, order, rows ? order_ : by_head, t.heads);
        permute({in_attention(block_, Slot::key_norm), kind}, order,
                rows ? Formula::call("group_order", {order_}) : by_group, t.kv_heads);
      }
    }
    Weight& output = at_slot(Slot::output);
    output = computed(output.shape(), by_head.transposed() * output.formula(), {output, order},
                      [=](const std::vector<at::Tensor>& in) {
                        return in[0].unflatten(1, {t.heads, -1}).index_select(1, in[1].to(at::kLong)).flatten(1);
                      });
  }

 private:
  static int64_t share_of(const Attention& t) { return t.heads / t.kv_heads; }
  int64_t share() const { return share_of(t_); }
  Weight& at_slot(Slot slot) { return model_.weights.at(name_of(weight_of(in_attention(block_, slot)))); }
  Weight weight(Slot slot) { return at_slot(slot); }
  Weight bias_or_none(Slot slot) {
    const auto found = model_.weights.find(name_of(bias_of(in_attention(block_, slot))));
    return found == model_.weights.end() ? Weight() : found->second;
  }
  static Formula formula_or_zero(const Weight& bias) { return bias ? bias.formula() : Formula("0"); }
  Formula for_queries(const Formula& gauge) const {
    return t_.heads == t_.kv_heads ? gauge : Formula::enclosed("to_queries(", gauge, ")");
  }

  // Left above right: [groups, rows of both, k].
  Weight both_sides(const std::shared_ptr<Shelf>& shelf, int64_t left, int64_t right, const Formula& formula,
                    const std::vector<Weight>& inputs,
                    const std::function<HeadSides(const std::vector<at::Tensor>&)>& make) const {
    return held(computed({t_.kv_heads, left + right, t_.head_width}, formula, inputs,
                         [make](const std::vector<at::Tensor>& in) {
                           const HeadSides sides = make(in);
                           return sides.left.defined() ? at::cat({sides.left, sides.right}, 1) : sides.right;
                         }),
                shelf);
  }

  // A matrix, and its bias where there is one, from rows of both sides.
  void set(Slot slot, const Weight& sides, int64_t begin, int64_t rows, int64_t columns, const Formula& gauge,
           bool dual) {
    const int64_t width = width_;
    const Formula factor = dual ? gauge.inverse().transposed() : gauge;
    const auto part = [=](const at::Tensor& all) { return stored_of(all.narrow(1, begin, rows), columns); };
    Weight& matrix = at_slot(slot);
    matrix = computed(matrix.shape(), matrix.formula() * factor, {sides},
                      [=](const std::vector<at::Tensor>& in) { return part(in[0]).narrow(1, 0, width).contiguous(); });
    if (columns > width) {
      Weight& bias = model_.weights.at(name_of(bias_of(in_attention(block_, slot))));
      bias = computed(bias.shape(), bias.formula() * factor, {sides},
                      [=](const std::vector<at::Tensor>& in) { return part(in[0]).select(1, width).contiguous(); });
    }
  }

  // The first axis in parts of as many entries, one for each head or group, in the order of the heads.
  void permute(const TensorId& id, const Weight& order, const Formula& formula, int64_t parts) {
    const auto found = model_.weights.find(name_of(id));
    if (found == model_.weights.end()) {
      return;
    }
    const int64_t heads = t_.heads;
    found->second = computed(found->second.shape(), found->second.formula() * formula, {found->second, order},
                             [=](const std::vector<at::Tensor>& in) {
                               at::Tensor places = in[1].to(at::kLong);
                               if (parts < heads) {  // each group where the first of its heads is
                                 places = at::floor_divide(places.view({parts, -1}).select(1, 0), heads / parts);
                               }
                               return in[0].unflatten(0, {parts, -1}).index_select(0, places).flatten(0, 1);
                             });
  }

  Model& model_;
  int64_t block_;
  Attention t_;
  int64_t width_;
  GaugeShelves shelves_;
  Weight values_;
  int64_t value_rows_ = 0;
  Formula gauge_of_values_, order_;
};

Precondition gauge_place(const ModuleId& module, const std::optional<GaugeObstacle>& failed, const char* expected) {
  return {.where = name_of(module),
          .block = module.block,
          .expected = failed ? failed->expected : expected,
          .found = failed ? failed->found : "it is so",
          .holds = !failed,
          .remedy = failed ? failed->remedy : ""};
}

Proposal propose_gauges(const Model& model, const Options&, const std::optional<Budget>&) {
  Proposal proposal{.after = model};
  const GaugeShelves shelves;
  RoundingWalk walk;
  int64_t ordered = 0, gauges = 0;
  for (int64_t n = 0; n < std::ssize(model.architecture.blocks); ++n) {
    const Attention& t = model.architecture.blocks[n].attention;
    const bool tabled = is_tabled(model.architecture, n);
    const std::optional<GaugeObstacle> value = value_obstacle(t, tabled), score = score_obstacle(model, t, n, tabled);
    const std::optional<GaugeObstacle> order = order_obstacle(t, !value);
    proposal.preconditions.push_back(gauge_place(in_attention(n, Slot::query), score, "a gauge of queries and keys"));
    proposal.preconditions.push_back(gauge_place(in_attention(n, Slot::value), value, "a gauge of values and outputs"));
    proposal.preconditions.push_back(gauge_place(in_attention(n, Slot::output), order, "heads that can change places"));
    gauges += (value ? 0 : t.kv_heads) + (score ? 0 : t.kv_heads);
    ordered += order ? 0 : 1;
    for (const auto& [free, one, other] :
         {std::tuple(!value, Slot::value, Slot::output), std::tuple(!score, Slot::query, Slot::key)}) {
      if (free) {  // two matrices, each rounded by itself: singular vectors go with singular vectors, nothing mixes
        walk.step(amplification(model, weight_of(in_attention(n, one))), runs_of(model.architecture, n));
        walk.step(amplification(model, weight_of(in_attention(n, other))), runs_of(model.architecture, n));
        proposal.applies = true;
      }
    }
    if (!model.has_weights()) {
      continue;
    }
    CanonicalBlock block(proposal.after, n, shelves);
    if (!value) {
      block.canonical_value();
    }
    if (!score) {
      const bool orthogonal = t.qk_norm || is<SameAsKey>(t.query);
      block.canonical_score(orthogonal ? ScoreGauge::orthogonal : ScoreGauge::general);
    }
    if (!order) {
      block.canonical_places();
    }
  }
  proposal.roundings = walk.roundings();
  if (proposal.applies) {
    proposal.notes.push_back(fmt::format(
        "{} head gauges are canonical, and heads are sorted in {} of {} blocks. No parameters are saved; models "
        "that differ only in this now have equal weights",
        gauges, ordered, model.architecture.blocks.size()));
  }
  return proposal;
}

}  // namespace

const Pass& pass_gauge_heads() {
  static const Pass pass{
      .id = "gauge_heads",
      .theorem = "AD(BD⁻')' = AB': of all the same heads the one with A = U√S, B = V√S of AB' = USV'",
      .saves = "no parameters: the same weights for all models that differ only in the bases and order of heads",
      .reference = "Cirrincione 2026, the gauge S_H ⋉ GL(k)^H of heads; proposition 4.2 of Karbevski and Mijoski 2025",
      .preconditions = {"query and key, value and output are matrices of their own",
                        "a norm of queries and keys is an RMSNorm with uniform gains",
                        "for their order: no ALiBi, and all four of them matrices"},
      .options = {},
      .propose = propose_gauges,
  };
  return pass;
}

}  // namespace pare
