// Inside a sublayer: gauges of heads, and scales of neurons.

#include <algorithm>

#include "pare/redundancy/tally.h"

namespace pare {

namespace {

// How many inputs of a projection are seen at all: one less behind a LayerNorm, one more with a constant.
struct SeenInputs {
  int64_t width = 0;
  bool constant = false;
  int64_t with_constant() const { return width + (constant ? 1 : 0); }
};

SeenInputs inputs_of(const Architecture& a, const Places& places, int64_t n) {
  const std::optional<Norm> norm = places.layer_norm_of(places.blocks[n].attention_input);
  return {norm ? a.width - 1 : a.width, norm && norm->bias};
}

int64_t missing(int64_t width, int64_t seen) {
  return std::max<int64_t>(width - seen, 0);
}

// ---- value and output

void count_value_output(Tally& tally, const Architecture& a, const Places& places, int64_t n) {
  const Attention& t = a.blocks[n].attention;
  const bool matrices =
      t.values == Form::factored && is<Dense>(t.output) && (is<Dense>(t.value) || is<FromKey>(t.value));
  if (!matrices && !is_tabled(a, n)) {
    return;
  }
  if (!is<Dense>(t.output)) {
    return;
  }
  const SeenInputs seen = inputs_of(a, places, n);
  const bool unseen_mean = places.all[places.blocks[n].attention_output].mean_unseen;
  const int64_t written = t.heads / t.kv_heads * (unseen_mean ? a.width - 1 : a.width);
  const bool constant_counts = (t.bias.value || seen.constant) && !(t.bias.output && !t.gate);
  const int64_t read = is<FromKey>(t.value) ? t.kv_heads * t.head_width : seen.width + (constant_counts ? 1 : 0);
  const int64_t idle = missing(t.head_width, read) * missing(t.head_width, written);
  tally.add(Symmetry::value_output, t.kv_heads * (t.head_width * t.head_width - idle), t.kv_heads);
}

// A value that is computed from the key sees no more than the input has: what is beside that does nothing.
void count_computed(Tally& tally, const Architecture& a, const Places& places, int64_t n) {
  const Attention& t = a.blocks[n].attention;
  if (!is<FromKey>(t.value) && !is<FromValue>(t.key)) {
    return;
  }
  const int64_t rows = t.kv_heads * t.head_width;
  tally.add(Symmetry::value_output, missing(rows, inputs_of(a, places, n).width) * rows, 1);
  if (missing(rows, inputs_of(a, places, n).width) > 0) {
    tally.cannot("keys or values computed from more numbers than the stream has");
  }
}

// What a head writes is as large as its shape times its matrix, of the output or else of the value.
void count_shape(Tally& tally, const Architecture& a, int64_t n) {
  const Attention& t = a.blocks[n].attention;
  if (!t.shaped) {
    return;
  }
  if (t.values == Form::collapsed || is<Dense>(t.output)) {
    tally.add(Symmetry::head_shape, t.heads, t.heads);
  } else if (is<Dense>(t.value) || is<FromKey>(t.value)) {
    tally.add(Symmetry::head_shape, t.kv_heads, t.kv_heads);
  } else {
    tally.cannot("shaped heads without a matrix that could take their size");
  }
  // x + sum_h alpha_h x V_h O_h: what a head keeps of the token itself may be kept by the skip, in another basis of the
  // stream behind it, (I - sum_h c_h V_h O_h)^-1. How many of these c are free is decided by who reads that stream.
  if (t.skip && !t.norm && !t.output_norm && !t.gate) {
    tally.cannot("shaped attention beside a skip, and both keep the token itself");
  }
}

// ---- query and key

void count_under_norm(Tally& tally, const Architecture& a, int64_t n) {
  const Attention& t = a.blocks[n].attention;
  const int64_t turned = t.rope ? t.rope->width : 0, rest = t.head_width - turned;
  const bool layer = t.qk_norm->kind == NormKind::layer, behind = norms_turned(t);
  const bool shared = t.qk_norm_over == QkNormOver::head, together = t.qk_norm_over == QkNormOver::layer;
  if (t.qk_norm->bias || !is<Dense>(t.query) || !(is<Dense>(t.key) || is<FromValue>(t.key))) {
    tally.cannot("a norm of queries and keys with a bias, or without both matrices");
    return;
  }
  if (layer && (behind || together)) {
    tally.cannot("a LayerNorm over all queries and keys at once, or behind their rotation");
  }
  if (t.qk_norm->gain) {
    // Of two gains only the product is seen: of a plane that turns behind them, both at once. Beside a mean the gains
    // make a form of which rotations leave only the spectrum, one number less than gains.
    const int64_t seen_once = behind ? t.head_width : turned / 2 + rest;
    const bool spectrum = layer && !t.rope && !together;
    const int64_t sets = shared ? 1 : t.kv_heads;
    if (spectrum && !shared && t.heads != t.kv_heads) {
      tally.cannot("a LayerNorm with gains for each of several query heads that share a key");
    }
    tally.add(Symmetry::qk_norm_gain, sets * (seen_once + (spectrum && (shared || t.heads == t.kv_heads) ? 1 : 0)),
              sets);
  } else {
    // A mean that the norm takes away leaves the directions beside it; a plane that turns has no such direction.
    const int64_t turns = layer ? rotations(rest - 1) : turned / 2 + rotations(rest);
    tally.add(Symmetry::query_key, t.kv_heads * turns, t.kv_heads);
  }
  if (layer && !behind) {
    const int64_t queries = (together ? 1 : t.heads) * (a.width + (t.bias.query ? 1 : 0));
    const bool computed = is<FromValue>(t.key);
    const int64_t keys =
        (together ? 1 : t.kv_heads) * ((computed ? t.kv_heads * t.head_width : a.width) + (t.bias.key ? 1 : 0));
    tally.add(Symmetry::query_key, queries + keys, t.heads + t.kv_heads);
    if (is<FromKey>(t.value)) {
      tally.cannot("values computed from keys whose mean a norm takes away");
    }
  }
}

void count_query_key(Tally& tally, const Architecture& a, const Places& places, int64_t n) {
  const Attention& t = a.blocks[n].attention;
  if (t.scores == Form::collapsed) {
    return;
  }
  if (t.qk_norm) {
    count_under_norm(tally, a, n);
    return;
  }
  const int64_t turned = t.rope ? t.rope->width : 0, rest = t.head_width - turned;
  const SeenInputs seen = inputs_of(a, places, n);
  if (is<SameAsKey>(t.query)) {
    if (!is<Dense>(t.key)) {
      tally.cannot("a query that is a key without a matrix");
      return;
    }
    const int64_t idle = turned == 0 ? rotations(missing(rest, seen.width + (t.bias.key || seen.constant ? 1 : 0))) : 0;
    tally.add(Symmetry::query_key, t.kv_heads * (turned / 2 + rotations(rest) - idle), t.kv_heads);
    return;
  }
  const bool keys = is<Dense>(t.key) || is<FromValue>(t.key);
  if (!is_tabled(a, n) && (!is<Dense>(t.query) || !keys)) {
    return;
  }
  const int64_t group = t.heads / t.kv_heads;
  const int64_t queries = group * (seen.width + (t.bias.query || seen.constant ? 1 : 0));
  const bool key_constant = (t.bias.key || seen.constant) && !drops_key_constants(t);
  const int64_t read = is<FromValue>(t.key) ? t.kv_heads * t.head_width : seen.width + (key_constant ? 1 : 0);
  const int64_t idle = turned == 0 ? missing(rest, queries) * missing(rest, read) : 0;
  tally.add(Symmetry::query_key, t.kv_heads * (turned + rest * rest - idle), t.kv_heads);
}

bool is_homogeneous(Activation activation) {
  return activation == Activation::relu || activation == Activation::relu_squared || activation == Activation::identity;
}

}  // namespace

void count_heads(Tally& tally, const Architecture& a, const Places& places) {
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    if (is_tabled(a, n)) {
      tally.cannot("projections that are rows of the first layer's table");
    }
    if (a.blocks[n].attention.gate && a.context <= a.width) {
      tally.cannot("a gate that sees fewer positions than it has weights for");
    }
    const bool computed =
        a.embedding.position == Position::sinusoidal || a.embedding.position == Position::sinusoidal_halves;
    if (a.blocks[n].attention.gate && computed && a.embedding.factor) {
      tally.cannot("a gate that sees computed positions twice, beside a factorised table");
    }
    count_value_output(tally, a, places, n);
    count_computed(tally, a, places, n);
    count_shape(tally, a, n);
    count_query_key(tally, a, places, n);
    if (const Nonlinear* query = std::get_if<Nonlinear>(&a.blocks[n].attention.query)) {
      tally.add(Symmetry::mlp_scaling, is_homogeneous(query->activation) ? query->width : 0);
      if (query->activation == Activation::identity) {
        tally.cannot("a nonlinear query that is linear");
      }
    }
  }
}

void count_mlps(Tally& tally, const Architecture& a) {
  for (const Block& block : a.blocks) {
    if (!block.mlp) {
      continue;
    }
    const NeuronFacts neurons = neurons_of(*block.mlp);
    if (neurons.linear) {
      tally.cannot("an MLP without an activation");
    }
    tally.add(Symmetry::mlp_scaling, std::ssize(neurons.factors) * neurons.count);
    const DenseMlp* dense = std::get_if<DenseMlp>(&block.mlp->kind);
    if (dense && dense->activation == Activation::xielu) {
      // s times the curve is a curve, and the matrix behind it takes it back.
      tally.add(Symmetry::mlp_scaling, 1);
      tally.cannot("xIELU, of which one number may do nothing");
    }
  }
}

}  // namespace pare
