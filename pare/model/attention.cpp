#include "pare/model/attention.h"

#include <ATen/ATen.h>

#include <limits>

#include "pare/model/activation.h"

namespace pare {

namespace {

struct Heads {
  at::Tensor query, key, value;  // [batch, heads, tokens, head width]
};

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

at::Tensor merge_heads(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), x.size(1) * x.size(3)});
}

// A shrunk pair's matrix with its identity block put back: [kv_heads * head_width, width].
Parameter unshrunk(Loader& loader, const ModuleId& module, int64_t width) {
  const at::Tensor pivots = loader.indices({module, TensorKind::pivot});
  std::vector<at::Tensor> others;  // ascending
  for (int64_t g = 0; g < pivots.size(0); ++g) {
    const at::Tensor is_pivot = at::zeros({width}, pivots.options()).index_fill_(0, pivots[g], 1);
    others.push_back(at::argsort(is_pivot, /*stable=*/true).narrow(0, 0, width - pivots.size(1)));
  }
  return loader.made_from(weight_of(module), [=](const at::Tensor& rest) {
    const int64_t rows = rest.size(1);
    std::vector<at::Tensor> dense;
    for (int64_t g = 0; g < rest.size(0); ++g) {
      dense.push_back(at::zeros({rows, width}, rest.options())
                          .index_copy(1, others[g], rest[g])
                          .index_copy(1, pivots[g], at::eye(rows, rest.options())));
    }
    return at::cat(dense, 0);
  });
}

// A key or a value, whole or shrunk.
Linear load_paired(Loader& loader, const ModuleId& module, int64_t width) {
  if (!loader.stores({module, TensorKind::pivot})) {
    return loader.linear(module);
  }
  return {unshrunk(loader, module, width), loader.tensor(bias_of(module))};
}

// One by one, each in the form that it is stored in.
void load_projections(Loader& loader, AttentionLayer& layer, int64_t block) {
  const auto at = [block](Slot slot) { return in_attention(block, slot); };
  layer.query = loader.linear(at(Slot::query));
  layer.query_up = loader.linear(at(Slot::query_up));
  layer.query_down = loader.linear(at(Slot::query_down));
  layer.key = load_paired(loader, at(Slot::key), layer.width);
  layer.value = load_paired(loader, at(Slot::value), layer.width);
  layer.key_from_value = {loader.tensor(weight_of(at(Slot::key_from_value))), layer.key.bias};
  layer.value_from_key = {loader.tensor(weight_of(at(Slot::value_from_key))), layer.value.bias};
  if (const ModuleId both = at(Slot::query_key); loader.stores(weight_of(both))) {
    // x qk[h] y' + y b[h] = (x qk[h] + b[h]) y': a query of full width against the input itself.
    layer.query = {
        loader.made_from(weight_of(both), [](const at::Tensor& qk) { return qk.transpose(1, 2).flatten(0, 1); }),
        loader.made_from(bias_of(both), [](const at::Tensor& bias) { return bias.flatten(); })};
  }
}

at::Tensor without_bias(const at::Tensor& x, const Parameter& bias) {
  return bias.defined() ? x - bias.tensor() : x;
}

at::Tensor query_of(const AttentionLayer& layer, const at::Tensor& x, const at::Tensor& key) {
  if (is<SameAsKey>(layer.spec.query)) {
    return key;
  }
  if (const Nonlinear* nonlinear = std::get_if<Nonlinear>(&layer.spec.query)) {
    return layer.query(x + layer.query_down(activate(nonlinear->activation, layer.query_up(x))));
  }
  return layer.query(x);
}

// The tokens at hand, before anything is remembered.
Heads project(const AttentionLayer& layer, const at::Tensor& x, bool tabled) {
  const Attention& t = layer.spec;
  if (tabled || layer.projections.weight.defined()) {
    // Cut before heads are turned: what gradients are put together from then stands in one piece.
    const int64_t queries = t.heads * t.head_width, keys = t.kv_heads * t.head_width;
    const std::vector<at::Tensor> three =
        (tabled ? x : layer.projections(x)).split_with_sizes({queries, keys, keys}, 2);
    return {split_heads(three[0], t.heads), split_heads(three[1], t.kv_heads), split_heads(three[2], t.kv_heads)};
  }
  Heads heads;
  if (is<FromValue>(t.key)) {
    heads.value = layer.value(x);
    heads.key = layer.key_from_value(without_bias(heads.value, layer.value.bias));
  } else {
    heads.key = t.scores == Form::collapsed ? x : layer.key(x);
    if (is<FromKey>(t.value)) {
      heads.value = layer.value_from_key(without_bias(heads.key, layer.key.bias));
    } else {
      heads.value = t.values == Form::collapsed ? x : layer.value(x);
    }
  }
  heads.query = query_of(layer, x, heads.key);
  return {split_heads(heads.query, t.heads), split_heads(heads.key, t.scores == Form::collapsed ? 1 : t.kv_heads),
          split_heads(heads.value, t.values == Form::collapsed ? 1 : t.kv_heads)};
}

// Queries or keys, normed and turned: over each head, or over all of them at once.
at::Tensor ready(const Attention& t, const std::optional<NormLayer>& norm, at::Tensor x, Step& step, bool all) {
  const auto normed = [&](const at::Tensor& heads) {
    return norm && t.qk_norm_over == QkNormOver::layer ? split_heads((*norm)(merge_heads(heads)), heads.size(1))
                                                       : normalised(norm, heads);
  };
  const auto turned_on = [&](const at::Tensor& heads) {
    return t.rope ? turned(*t.rope, step.turn(*t.rope, all), heads) : heads;
  };
  return norms_turned(t) ? normed(turned_on(x)) : turned_on(normed(x));
}

at::Tensor keys_ready(const AttentionLayer& layer, const at::Tensor& key, Step& step, bool all) {
  return ready(layer.spec, layer.key_norm, key, step, all);
}

// Puts what the layer remembers into its cache, and gives back keys and values of all tokens, ready for the scores.
void recall(const AttentionLayer& layer, const at::Tensor& x, Heads& heads, Step& step, LayerCache& cache) {
  const Attention& t = layer.spec;
  if (is<FromKey>(t.value)) {
    const at::Tensor raw = step.extended(cache.keys, heads.key);
    const at::Tensor values = layer.value_from_key(without_bias(merge_heads(raw), layer.key.bias));
    heads.value = split_heads(values, t.kv_heads);
    heads.key = keys_ready(layer, raw, step, true);
    return;
  }
  if (is<FromValue>(t.key)) {
    heads.value = step.extended(cache.values, heads.value);
    const at::Tensor keys = layer.key_from_value(without_bias(merge_heads(heads.value), layer.value.bias));
    heads.key = keys_ready(layer, split_heads(keys, t.kv_heads), step, true);
    return;
  }
  if (t.remembered == Remembered::inputs) {
    const at::Tensor inputs = step.extended(cache.inputs, x.unsqueeze(1)).squeeze(1);
    heads.key = keys_ready(layer, split_heads(layer.key(inputs), t.kv_heads), step, true);
    heads.value = split_heads(layer.value(inputs), t.kv_heads);
    return;
  }
  heads.key = step.extended(cache.keys, keys_ready(layer, heads.key, step, false));
  // Collapsed scores and values both read the input: remembered once.
  heads.value =
      t.scores == Form::collapsed && t.values == Form::collapsed ? heads.key : step.extended(cache.values, heads.value);
}

at::Tensor for_every_head(const at::Tensor& x, int64_t heads) {
  return x.size(1) == heads || x.size(1) == 1 ? x : x.repeat_interleave(heads / x.size(1), 1);
}

// softmax over explicit scores: what taps, softcaps, ALiBi and collapsed heads need.
at::Tensor explicit_attention(const AttentionLayer& layer, const Heads& h, double scale, Step& step,
                              const std::string& prefix) {
  const Attention& t = layer.spec;
  at::Tensor scores = at::matmul(h.query, for_every_head(h.key, t.heads).transpose(-1, -2)) * scale;
  const bool narrow = scores.scalar_type() == at::kHalf || scores.scalar_type() == at::kBFloat16;
  if (t.alibi) {
    // By distance, not by the key's position: softmax cannot tell them apart (no family caps scores that have a bias),
    // but far into a text slope * position swallows the scores' last digits. No type narrower than float32 counts far.
    const at::Tensor slopes = step.tables().alibi_slopes(t.heads, t.alibi->steepest),
                     distances = step.distances(slopes.scalar_type());
    scores = at::addcmul(scores, slopes, distances, t.alibi->scaled ? scale : 1).to(scores.scalar_type());
  }
  if (t.softcap) {
    scores = *t.softcap * at::tanh(scores / *t.softcap);
  }
  const Visibility& visible = step.visibility(t.mask, t.window);
  at::Tensor allowed = visible.allowed;
  if (visible.causal_only) {
    allowed = step.tables().triangle(scores.size(2));
  }
  if (allowed.defined()) {
    scores = scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  }
  scores = step.tap(prefix, "scores", scores);
  // Narrow types sum their softmax in float32, as everybody does.
  at::Tensor probabilities =
      (narrow ? at::softmax(scores, -1, at::kFloat).to(scores.scalar_type()) : at::softmax(scores, -1));
  probabilities = step.dropped(step.tap(prefix, "probabilities", probabilities), &DropoutRates::attention);
  return at::matmul(probabilities, for_every_head(h.value, t.heads));
}

// cuDNN plans its attention anew for each shape, which takes longer than a step of decoding: the number of keys grows
// with each.
class WithoutPlans {
 public:
  explicit WithoutPlans(bool wanted) : off_(wanted && at::globalContext().userEnabledCuDNNSDP()) { set(!off_); }
  ~WithoutPlans() { set(true); }
  WithoutPlans(const WithoutPlans&) = delete;
  WithoutPlans& operator=(const WithoutPlans&) = delete;

 private:
  // All threads share the setting: nobody writes it who changes nothing.
  void set(bool plans) const {
    if (off_) {
      at::globalContext().setSDPUseCuDNN(plans);
    }
  }
  bool off_;
};

at::Tensor fused_attention(const AttentionLayer& layer, const Heads& h, double scale, Step& step) {
  const WithoutPlans growing(h.query.is_cuda() && step.cache() && !step.placed());
  const Attention& t = layer.spec;
  const Visibility& visible = step.visibility(t.mask, t.window);
  const bool grouped = t.kv_heads != t.heads;
  const std::optional<at::Tensor> allowed = visible.allowed.defined() ? std::optional(visible.allowed) : std::nullopt;
  if (grouped && h.query.size(2) == 1 && !visible.causal_only) {
    // One token: the query heads of a group are just as many queries to its one key head, with no copy of the cache.
    const int64_t batch = h.query.size(0);
    const at::Tensor queries = h.query.reshape({batch, t.kv_heads, t.heads / t.kv_heads, t.head_width});
    return at::scaled_dot_product_attention(queries, h.key, h.value, allowed, 0.0, false, scale)
        .reshape({batch, t.heads, 1, t.head_width});
  }
  return at::scaled_dot_product_attention(h.query, h.key, h.value, allowed, 0.0, visible.causal_only, scale, grouped);
}

// What attention would give if every score were the same: the mean of the values that each query sees. So it is asked
// with queries and keys of nothing, which a GPU does several times faster than a running sum.
at::Tensor uniform_attention(const AttentionLayer& layer, const at::Tensor& attended, const at::Tensor& value,
                             Step& step) {
  const Visibility& visible = step.visibility(layer.spec.mask, layer.spec.window);
  const std::optional<at::Tensor> allowed = visible.allowed.defined() ? std::optional(visible.allowed) : std::nullopt;
  const at::Tensor values = value.expand({-1, layer.spec.heads, -1, -1});
  const at::Tensor query = at::zeros_like(attended).transpose(1, 2), key = at::zeros_like(values);
  return at::scaled_dot_product_attention(query, key, values, allowed, 0.0, visible.causal_only, 1.0).transpose(1, 2);
}

// A = alpha I + beta softmax(...) - gamma C: with alpha, beta and gamma one and all scores the same, each token goes on
// as it is, and a stack without skips begins as one that keeps its tokens apart. As [batch, tokens, heads, width].
at::Tensor shaped_attention(const AttentionLayer& layer, const at::Tensor& attended, const at::Tensor& value,
                            Step& step, const std::string& prefix) {
  const at::Tensor values = for_every_head(value, layer.spec.heads);
  const at::Tensor own = step.at_hand(values).transpose(1, 2);
  const at::Tensor uniform = uniform_attention(layer, attended, values, step);
  at::Tensor shape = layer.shape;
  if (step.tapped()) {
    shape = step.tap(prefix, "shape", shape.expand({attended.size(0), attended.size(1), layer.spec.heads, 3}));
  }
  const auto times = [&shape](int64_t i, const at::Tensor& x) { return shape.select(-1, i).unsqueeze(-1) * x; };
  return times(0, own) + times(1, attended) - times(2, uniform);
}

}  // namespace

AttentionLayer load_attention(Loader& loader, const Architecture& architecture, int64_t block) {
  const auto at = [block](Slot slot) { return in_attention(block, slot); };
  const Attention& t = architecture.blocks[block].attention;
  AttentionLayer layer{.spec = t, .width = architecture.width};
  // Inputs that are remembered become keys and values one by one.
  const bool stackable = has_dense_projections(t) && t.remembered == Remembered::keys_values;
  if (stackable && loader.stores(weight_of(at(Slot::query)))) {
    layer.projections = loader.stacked({at(Slot::query), at(Slot::key), at(Slot::value)});
  } else {
    load_projections(loader, layer, block);
  }
  layer.output = loader.linear(at(Slot::output));
  if (const ModuleId both = at(Slot::value_output); loader.stores(weight_of(both))) {
    // sum_h (A_h x) vo[h]: one product over the stacked heads, each of full width.
    layer.output.weight = loader.made_from(weight_of(both), [](const at::Tensor& vo) { return vo.flatten(0, 1).t(); });
  }
  const bool each = t.qk_norm_over == QkNormOver::each_head;
  layer.query_norm = load_norm(loader, t.qk_norm, at(Slot::query_norm), each);
  layer.key_norm = load_norm(loader, t.qk_norm, at(Slot::key_norm), each);
  layer.gate = loader.linear(at(Slot::gate));
  layer.gate_position = loader.tensor({at(Slot::gate), TensorKind::position});
  layer.shape = loader.tensor(weight_of(at(Slot::shape)));
  return layer;
}

at::Tensor attend(const AttentionLayer& layer, const at::Tensor& x, bool tabled, Step& step, LayerCache* cache,
                  const std::string& prefix) {
  const Attention& t = layer.spec;
  Heads heads = project(layer, x, tabled);
  heads.query = ready(t, layer.query_norm, heads.query, step, false);
  if (cache) {
    recall(layer, x, heads, step, *cache);
  } else {
    heads.key = keys_ready(layer, heads.key, step, false);
  }
  if (step.tapped()) {  // as [batch, tokens, heads, width], like everything else that has tokens
    heads.query = step.tap(prefix, "query", heads.query.transpose(1, 2)).transpose(1, 2);
    heads.key = step.tap(prefix, "key", heads.key.transpose(1, 2)).transpose(1, 2);
    heads.value = step.tap(prefix, "value", heads.value.transpose(1, 2)).transpose(1, 2);
  }

  const double scale = scale_of(t);
  const bool must_be_explicit = step.drops_attention() || t.softcap || t.alibi || t.scores == Form::collapsed ||
                                t.values == Form::collapsed || step.wants(prefix, "scores") ||
                                step.wants(prefix, "probabilities");
  at::Tensor mixed = must_be_explicit ? explicit_attention(layer, heads, scale, step, prefix)
                                      : fused_attention(layer, heads, scale, step);
  mixed = mixed.transpose(1, 2);  // [batch, tokens, heads, width]
  if (t.shaped) {
    mixed = shaped_attention(layer, mixed, heads.value, step, prefix);
  }
  if (t.gate) {
    // g_h = sigmoid(x W_g + p w_p + b), before the heads are summed.
    at::Tensor gate = at::sigmoid(layer.gate(x) + at::linear(step.gate_positions(layer.width), layer.gate_position));
    gate = step.tap(prefix, "gate", gate);
    mixed = mixed * gate.unsqueeze(-1);
  }
  mixed = step.tap(prefix, "heads", mixed);
  return layer.output(mixed.reshape({mixed.size(0), mixed.size(1), mixed.size(2) * mixed.size(3)}));
}

}  // namespace pare
