#include "pare/export/onnx_layers.h"

#include <ATen/ATen.h>

namespace pare {

namespace {

class AttentionGraph {
 public:
  AttentionGraph(OnnxBuilder& b, OnnxStep& step, int64_t block, int64_t layer)
      : b_(b), step_(step), t_(b.architecture().blocks[block].attention), block_(block), layer_(layer) {}

  OnnxName emit(const OnnxName& x, const OnnxName& table);

 private:
  ModuleId at(Slot slot) const { return in_attention(block_, slot); }
  void enter() { b_.enter(fmt::format("blocks.{}.attention", layer_)); }
  OnnxName split(const OnnxName& x, int64_t heads) {  // [batch, heads, tokens, head width]
    return b_.transpose(b_.reshape(x, {0, 0, heads, t_.head_width}), {0, 2, 1, 3});
  }
  OnnxName merged(const OnnxName& x) { return b_.reshape(b_.transpose(x, {0, 2, 1, 3}), {0, 0, -1}); }
  OnnxName one_head(const OnnxName& x) { return b_.unsqueeze(x, {1}); }
  OnnxName paired(const OnnxName& x, Slot slot, const Projection& projection);
  OnnxName from_other(const OnnxName& other, Slot slot, const ModuleId& from, const ModuleId& to);
  OnnxName turned(const OnnxName& x, bool all);
  OnnxName key_ready(const OnnxName& key, bool all);
  OnnxName remembered(const OnnxName& fresh, const char* what, int64_t heads, int64_t width);
  void project(const OnnxName& x, const OnnxName& table);
  void recall(const OnnxName& x);
  OnnxName mixed();
  OnnxName in_groups(const OnnxName& x, int64_t groups);

  OnnxBuilder& b_;
  OnnxStep& step_;
  const Attention& t_;
  int64_t block_, layer_;
  OnnxName query_, key_, value_;
  int64_t key_heads_ = 0, value_heads_ = 0;
};

// A key or a value. A shrunk matrix is written out: its row j has a 1 in column pivot[j], zeros in the other pivots'
// columns, and its stored numbers in the rest, in their order.
OnnxName AttentionGraph::paired(const OnnxName& x, Slot slot, const Projection& projection) {
  if (!is<Shrunk>(projection)) {
    return b_.linear(x, at(slot));
  }
  const int64_t width = b_.architecture().width, rows = t_.kv_heads * t_.head_width;
  const OnnxName rest = b_.weight(weight_of(at(slot)));
  const OnnxName pivots = b_.unsqueeze(b_.cast(b_.weight({at(slot), TensorKind::pivot}), OnnxType::i64), {2});
  const OnnxName columns = b_.constant(fmt::format("columns.{}", width), at::arange(width, at::kLong));
  const OnnxName identity = b_.cast(b_.node("Equal", {pivots, columns}), OnnxType::i64);  // [G, k, d]
  const OnnxName taken = b_.node("ReduceMax", {identity, b_.indices({1})}, {{"keepdims", int64_t{1}}});
  const OnnxName counted = b_.node("CumSum", {b_.node("Sub", {b_.index(1), taken}), b_.index(2)});
  const OnnxName place = b_.node("Max", {b_.node("Sub", {counted, b_.index(1)}), b_.index(0)});
  const OnnxName each = b_.node("Expand", {place, b_.indices({t_.kv_heads, t_.head_width, width})});
  const OnnxName others = b_.node("GatherElements", {rest, each}, {{"axis", int64_t{2}}});
  const OnnxName seen = b_.cast(taken, OnnxType::boolean), ones = b_.cast(identity, OnnxType::f32);
  // In float32, in which every runtime has this operator: else it is left to each run.
  const OnnxName whole = b_.narrow(b_.node("Where", {seen, ones, b_.wide(others)}));
  const OnnxName matrix = b_.transpose(b_.reshape(whole, {rows, width}), {1, 0});
  b_.note(
      "a shrunk key or value is stored as pare stores it; a session writes it out when it is made, and holds it whole");
  return b_.plus(b_.node("MatMul", {x, matrix}), b_.weight(bias_of(at(slot))));
}

// A value computed from the key, or a key from the value: the biases stand outside of the matrix.
OnnxName AttentionGraph::from_other(const OnnxName& other, Slot slot, const ModuleId& from, const ModuleId& to) {
  const OnnxName bias = b_.weight(bias_of(from));
  const OnnxName plain = bias.empty() ? other : b_.node("Sub", {other, bias});
  return b_.plus(b_.node("MatMul", {plain, b_.weight(weight_of(at(slot)), {.transposed = true})}),
                 b_.weight(bias_of(to)));
}

OnnxName AttentionGraph::turned(const OnnxName& x, bool all) {
  if (!t_.rope) {
    return x;
  }
  const Rope& rope = *t_.rope;
  const OnnxTurn turn = step_.turn(rope, all);
  enter();
  const int64_t half = rope.width / 2;
  const bool halves = rope.layout == RopeLayout::half;
  const OnnxName first = halves ? b_.slice(x, 0, half, 3) : b_.slice(x, 0, rope.width, 3, 2);
  const OnnxName second = halves ? b_.slice(x, half, rope.width, 3) : b_.slice(x, 1, rope.width, 3, 2);
  const auto product = [this](const OnnxName& a, const OnnxName& c) { return b_.node("Mul", {a, c}); };
  OnnxName a = b_.node("Sub", {product(first, turn.cosine), product(second, turn.sine)});
  OnnxName c = b_.node("Add", {product(second, turn.cosine), product(first, turn.sine)});
  std::vector<OnnxName> parts = {a, c};
  if (!halves) {
    parts = {b_.reshape(b_.concat({b_.unsqueeze(a, {4}), b_.unsqueeze(c, {4})}, 4), {0, 0, 0, -1})};
  }
  if (rope.width < t_.head_width) {
    parts.push_back(b_.slice(x, rope.width, t_.head_width, 3));
  }
  return b_.concat(parts, 3);
}

OnnxName AttentionGraph::key_ready(const OnnxName& key, bool all) {
  return turned(emit_norm(b_, key, t_.qk_norm, at(Slot::key_norm), t_.head_width), all);
}

// The past, and the tokens at hand behind it.
OnnxName AttentionGraph::remembered(const OnnxName& fresh, const char* what, int64_t heads, int64_t width) {
  const std::string past = fmt::format("past_key_values.{}.{}", layer_, what);
  b_.input(past, b_.type(), {batch_axis, heads, past_axis, width});
  const OnnxName all = b_.concat({past, fresh}, 2);
  b_.output(all, fmt::format("present.{}.{}", layer_, what), {batch_axis, heads, all_axis, width});
  return all;
}

// The tokens at hand, before anything is remembered.
void AttentionGraph::project(const OnnxName& x, const OnnxName& table) {
  const int64_t queries = t_.heads * t_.head_width, keys = t_.kv_heads * t_.head_width;
  key_heads_ = value_heads_ = t_.kv_heads;
  if (!table.empty()) {
    query_ = split(b_.slice(table, 0, queries, 2), t_.heads);
    key_ = split(b_.slice(table, queries, queries + keys, 2), t_.kv_heads);
    value_ = split(b_.slice(table, queries + keys, queries + 2 * keys, 2), t_.kv_heads);
    return;
  }
  OnnxName key, value;
  if (is<FromValue>(t_.key)) {
    value = paired(x, Slot::value, t_.value);
    key = step_.cached() ? "" : from_other(value, Slot::key_from_value, at(Slot::value), at(Slot::key));
  } else {
    key = t_.scores == Form::collapsed ? "" : paired(x, Slot::key, t_.key);
    if (is<FromKey>(t_.value)) {
      value = step_.cached() ? "" : from_other(key, Slot::value_from_key, at(Slot::key), at(Slot::value));
    } else {
      value = t_.values == Form::collapsed ? "" : paired(x, Slot::value, t_.value);
    }
  }
  if (t_.scores == Form::collapsed) {
    // x qk[h] y' + y b[h] = (x qk[h] + b[h]) y': a query of full width against the input itself.
    const ModuleId both = at(Slot::query_key);
    const OnnxName heads = b_.node("MatMul", {one_head(x), b_.weight(weight_of(both))});
    query_ = b_.plus(heads, b_.weight(bias_of(both), {.shape = {t_.heads, 1, b_.architecture().width}}));
    key_ = one_head(x);
    key_heads_ = 1;
  } else {
    OnnxName query = x;
    if (const Nonlinear* nonlinear = std::get_if<Nonlinear>(&t_.query)) {
      const OnnxName up = emit_activation(b_, nonlinear->activation, b_.linear(x, at(Slot::query_up)));
      query = b_.node("Add", {x, b_.linear(up, at(Slot::query_down))});
    }
    query = is<SameAsKey>(t_.query) ? key : b_.linear(query, at(Slot::query));
    query_ = split(query, t_.heads);
    key_ = key.empty() ? "" : split(key, t_.kv_heads);
  }
  if (t_.values == Form::collapsed) {
    value_ = t_.scores == Form::collapsed ? key_ : one_head(x);
    value_heads_ = 1;
  } else {
    value_ = value.empty() ? "" : split(value, t_.kv_heads);
  }
}

// Keys and values of all tokens, ready for the scores.
void AttentionGraph::recall(const OnnxName& x) {
  const int64_t width = b_.architecture().width;
  if (!step_.cached()) {
    key_ = key_ready(key_, false);
  } else if (is<FromKey>(t_.value)) {
    const OnnxName raw = remembered(key_, "key", t_.kv_heads, t_.head_width);
    value_ = split(from_other(merged(raw), Slot::value_from_key, at(Slot::key), at(Slot::value)), t_.kv_heads);
    key_ = key_ready(raw, true);
  } else if (is<FromValue>(t_.key)) {
    value_ = remembered(value_, "value", t_.kv_heads, t_.head_width);
    const OnnxName keys = from_other(merged(value_), Slot::key_from_value, at(Slot::value), at(Slot::key));
    key_ = key_ready(split(keys, t_.kv_heads), true);
  } else if (t_.remembered == Remembered::inputs) {
    const OnnxName all = b_.node("Squeeze", {remembered(one_head(x), "input", 1, width), b_.indices({1})});
    key_ = key_ready(split(paired(all, Slot::key, t_.key), t_.kv_heads), true);
    value_ = split(paired(all, Slot::value, t_.value), t_.kv_heads);
  } else {
    const bool once = t_.scores == Form::collapsed && t_.values == Form::collapsed;  // both read the input
    key_ = remembered(key_ready(key_, false), "key", key_heads_, t_.scores == Form::collapsed ? width : t_.head_width);
    value_ =
        once ? key_ : remembered(value_, "value", value_heads_, t_.values == Form::collapsed ? width : t_.head_width);
  }
}

// The query heads that share a key head, or a value head, one below the other: nothing is copied for each.
OnnxName AttentionGraph::in_groups(const OnnxName& x, int64_t groups) {
  return groups == t_.heads ? x : b_.reshape(x, {0, groups, -1, 0});
}

OnnxName AttentionGraph::mixed() {
  const OnnxName alibi = t_.alibi ? step_.alibi(t_) : "", hidden = step_.hidden(t_);
  const OnnxName uniform = t_.shaped ? step_.uniform(t_) : "", diagonal = t_.shaped ? step_.diagonal() : "";
  enter();
  const auto of_every_head = [this](const OnnxName& x, int64_t groups) {
    return groups == t_.heads ? x : b_.reshape(x, {0, t_.heads, -1, 0});
  };
  // The query is scaled, and not the scores, which could be too large for float16 until then.
  const double scale = scale_of(t_);
  const OnnxName query = scale == 1 ? query_ : b_.node("Mul", {query_, b_.real(scale)});
  const OnnxName products = b_.node("MatMul", {in_groups(query, key_heads_), b_.transpose(key_, {0, 1, 3, 2})});
  OnnxName scores = b_.wide(of_every_head(products, key_heads_));
  if (!alibi.empty()) {
    scores = b_.node("Add", {scores, alibi});
  }
  if (t_.softcap) {
    const OnnxName cap = b_.wide_real(*t_.softcap);
    scores = b_.node("Mul", {b_.node("Tanh", {b_.node("Div", {scores, cap})}), cap});
  }
  if (!hidden.empty()) {
    scores = b_.node("Add", {scores, hidden});
  }
  OnnxName seen = b_.node("Softmax", {scores}, {{"axis", int64_t{-1}}});
  if (t_.shaped) {  // alpha I + beta softmax(...) - gamma C
    const OnnxName shape = b_.weight(weight_of(at(Slot::shape)));
    const auto times = [&](int64_t i, const OnnxName& what) {
      const OnnxName each = b_.wide(b_.reshape(b_.slice(shape, i, i + 1, 1), {t_.heads, 1, 1}));
      return b_.node("Mul", {each, what});
    };
    seen = b_.node("Sub", {b_.node("Add", {times(0, diagonal), times(1, seen)}), times(2, uniform)});
  }
  const OnnxName values = b_.node("MatMul", {in_groups(b_.narrow(seen), value_heads_), value_});
  return b_.transpose(of_every_head(values, value_heads_), {0, 2, 1, 3});  // [batch, tokens, heads, width]
}

OnnxName AttentionGraph::emit(const OnnxName& x, const OnnxName& table) {
  enter();
  project(x, table);
  query_ = turned(emit_norm(b_, query_, t_.qk_norm, at(Slot::query_norm), t_.head_width), false);
  recall(x);
  OnnxName heads = mixed();
  if (t_.gate) {
    const OnnxName waves = step_.sinusoidal(b_.architecture().width);
    enter();
    const OnnxName place = b_.weight({at(Slot::gate), TensorKind::position}, {.transposed = true});
    const OnnxName sum = b_.node("Add", {b_.linear(x, at(Slot::gate)), b_.node("MatMul", {waves, place})});
    heads = b_.node("Mul", {heads, b_.unsqueeze(b_.node("Sigmoid", {sum}), {3})});
  }
  const OnnxName joined = b_.reshape(heads, {0, 0, -1});
  const ModuleId output = at(Slot::output);
  if (t_.values == Form::collapsed) {  // one product over the stacked heads, each of full width
    const int64_t width = b_.architecture().width;
    const OnnxName matrix = b_.weight(weight_of(at(Slot::value_output)), {.shape = {t_.heads * width, width}});
    return b_.plus(b_.node("MatMul", {joined, matrix}), b_.weight(bias_of(output)));
  }
  return b_.linear(joined, output);
}

}  // namespace

OnnxName emit_attention(OnnxBuilder& b, OnnxStep& step, const OnnxName& x, const OnnxName& table, int64_t block,
                        int64_t layer) {
  return AttentionGraph(b, step, block, layer).emit(x, table);
}

}  // namespace pare
