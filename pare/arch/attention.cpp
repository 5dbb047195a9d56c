#include "pare/arch/attention.h"

#include <cmath>

#include "pare/arch/slots.h"
#include "pare/arch/sublayer.h"
#include "pare/arch/words.h"
#include "pare/support/error.h"

namespace pare {

bool is_plain(const Projection& projection) {
  return is<Dense>(projection) || is<Identity>(projection);
}

double scale_of(const Attention& t) {
  return t.scale.value_or(1 / std::sqrt(static_cast<double>(t.head_width)));
}

bool rows_sum_to_one(const Attention& t) {
  return !t.gate && !t.shaped;
}

bool has_dense_projections(const Attention& t) {
  return t.scores == Form::factored && t.values == Form::factored && is<Dense>(t.query) && is<Dense>(t.key) &&
         is<Dense>(t.value);
}

bool norms_turned(const Attention& t) {
  return t.qk_norm && t.qk_norm->place == NormPlace::post;
}

std::vector<int64_t> qk_norm_shape(const Attention& t, int64_t heads) {
  switch (t.qk_norm_over) {
    case QkNormOver::head:
      return {t.head_width};
    case QkNormOver::each_head:
      return {heads, t.head_width};
    case QkNormOver::layer:
      return {heads * t.head_width};
  }
  PARE_UNREACHABLE("a norm of queries and keys without a shape");
}

bool has_plain_keys_and_values(const Attention& t) {
  return t.scores == Form::factored && t.values == Form::factored && is_plain(t.key) && is_plain(t.value) &&
         t.remembered == Remembered::keys_values;
}

// ---- as JSON

// The format is older than the kinds of projections: a shrunk key or value is a word under `pairs`, one computed from
// the other a word under `cache`, and both are "dense" beside it.
enum class PairWord { full, shrunk };
enum class CacheWord { kv, k, v, x };
static Words<PairWord> words(PairWord) {
  return {{PairWord::full, "full"}, {PairWord::shrunk, "shrunk"}};
}
static Words<CacheWord> words(CacheWord) {
  return {{CacheWord::kv, "kv"}, {CacheWord::k, "k"}, {CacheWord::v, "v"}, {CacheWord::x, "x"}};
}

struct PairWords {
  PairWord value_output = PairWord::full, query_key = PairWord::full;
};

struct NonlinearForm {
  Nonlinear nonlinear;
};

template <class Io>
static void describe(Io& io, PairWords& p) {
  io.optional("value_output", p.value_output, PairWord::full);
  io.optional("query_key", p.query_key, PairWord::full);
}

template <class Io>
static void describe(Io& io, Alibi& a) {
  io.optional("scaled", a.scaled, true);
  io.optional("steepest", a.steepest, 8.0);
}

template <class Io>
static void describe(Io& io, Nonlinear& n) {
  io.required("width", n.width);
  io.optional("activation", n.activation, Activation::gelu);
}

template <class Io>
static void describe(Io& io, NonlinearForm& f) {
  io.required("nonlinear", f.nonlinear);
}

// "dense", "identity" and "key" are words; {"nonlinear": {...}} is the one form with settings.
static std::string read_special(const nlohmann::json& json, Projection& p) {
  const std::string expected = "dense, identity, key or {\"nonlinear\": {\"width\": N, \"activation\": A}}";
  if (json.is_object()) {
    Problems problems;
    NonlinearForm form;
    JsonReader reader(json, "", problems, problems);
    describe(reader, form);
    reader.finish();
    p = form.nonlinear;
    return problems.empty() ? "" : expected;
  }
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  if (text == "dense") {
    p = Dense{};
  } else if (text == "identity") {
    p = Identity{};
  } else if (text == "key") {
    p = SameAsKey{};
  } else {
    return expected;
  }
  return "";
}

static nlohmann::ordered_json write_special(Projection& p) {
  if (const Nonlinear* nonlinear = std::get_if<Nonlinear>(&p)) {
    NonlinearForm form{*nonlinear};
    JsonWriter writer;
    describe(writer, form);
    return writer.json;
  }
  return is<Identity>(p) ? "identity" : is<SameAsKey>(p) ? "key" : "dense";
}

template <class Io>
static void describe(Io& io, AttentionBias& b) {
  io.optional("query", b.query, false);
  io.optional("key", b.key, false);
  io.optional("value", b.value, false);
  io.optional("output", b.output, false);
}

static PairWords pair_words(const Attention& a) {
  return {is<Shrunk>(a.value) ? PairWord::shrunk : PairWord::full,
          is<Shrunk>(a.key) ? PairWord::shrunk : PairWord::full};
}

static CacheWord cache_word(const Attention& a) {
  return is<FromKey>(a.value)                 ? CacheWord::k
         : is<FromValue>(a.key)               ? CacheWord::v
         : a.remembered == Remembered::inputs ? CacheWord::x
                                              : CacheWord::kv;
}

// What the two words say, put into the projections that they are about.
template <class Io>
static void apply_words(Io& io, const PairWords& pairs, CacheWord cache, Attention& a) {
  const auto replace = [&io](bool asked, Projection& projection, const Projection& kind, const char* key,
                             const char* needs) {
    if (!asked || projection == kind) {
      return;
    }
    if (!is<Dense>(projection)) {
      io.contradiction(key, needs);
      return;
    }
    projection = kind;
  };
  a.remembered = cache == CacheWord::x ? Remembered::inputs : Remembered::keys_values;
  replace(cache == CacheWord::k, a.value, FromKey{}, "cache", "k replaces the value matrix: leave value dense");
  replace(cache == CacheWord::v, a.key, FromValue{}, "cache",
          "v replaces the key matrix: leave key dense, and query not 'key'");
  replace(pairs.value_output == PairWord::shrunk, a.value, Shrunk{}, "pairs.value_output",
          "shrunk needs a stored dense value");
  replace(pairs.query_key == PairWord::shrunk, a.key, Shrunk{}, "pairs.query_key",
          "shrunk needs a stored dense key of its own, and neither rope nor qk_norm");
}

template <class Io>
static void fields(Io& io, Attention& a) {
  PairWords pairs = pair_words(a);
  CacheWord cache = cache_word(a);
  io.required("heads", a.heads);
  io.optional("kv_heads", a.kv_heads, int64_t{a.heads});
  io.required("head_width", a.head_width);
  io.nullable("scale", a.scale);
  io.optional("query", a.query, Projection{});
  io.optional("key", a.key, Projection{});
  io.optional("value", a.value, Projection{});
  io.optional("output", a.output, Projection{});
  io.optional("scores", a.scores, Form::factored);
  io.optional("values", a.values, Form::factored);
  io.optional("bias", a.bias, AttentionBias{});
  io.optional("mask", a.mask, Mask::causal);
  io.nullable("window", a.window);
  io.nullable("alibi", a.alibi);
  io.nullable("rope", a.rope);
  io.nullable("qk_norm", a.qk_norm);
  io.optional("qk_norm_over", a.qk_norm_over, QkNormOver::head);
  io.nullable("softcap", a.softcap);
  io.nullable("gate", a.gate);
  io.optional("shaped", a.shaped, false);
  io.nullable("norm", a.norm);
  io.nullable("output_norm", a.output_norm);
  io.optional("skip", a.skip, true);
  io.optional("pairs", pairs, PairWords{});
  io.optional("cache", cache, CacheWord::kv);
  apply_words(io, pairs, cache, a);
  if (a.rope && a.rope->width == 0) {
    a.rope->width = a.head_width;
  }
}

void describe(JsonReader& io, Attention& attention) {
  fields(io, attention);
}
void describe(JsonWriter& io, Attention& attention) {
  fields(io, attention);
}

// ---- its rules

static void check_projections(Rules& rules, const std::string& path, const Attention& t, int64_t width) {
  const auto keeps_width = [&](const char* name, const Projection& projection, const char* heads_name, int64_t heads) {
    const bool kept = is<Identity>(projection) || is<Nonlinear>(projection);
    rules.require(!kept || heads * t.head_width == width, path + name,
                  "identity needs {} * head_width = width, found {} * {} and {}", heads_name, heads, t.head_width,
                  width);
  };
  keeps_width("query", t.query, "heads", t.heads);
  keeps_width("key", t.key, "kv_heads", t.kv_heads);
  keeps_width("value", t.value, "kv_heads", t.kv_heads);
  keeps_width("output", t.output, "heads", t.heads);
  for (const auto& [name, projection] : {std::pair{"key", &t.key}, {"value", &t.value}, {"output", &t.output}}) {
    rules.require(!is<SameAsKey>(*projection) && !is<Nonlinear>(*projection), path + name,
                  "must be dense or identity; only a query may be 'key' or nonlinear");
  }
  if (is<SameAsKey>(t.query)) {
    rules.require(t.kv_heads == t.heads, path + "query", "'key' needs kv_heads = heads, found {} and {}", t.kv_heads,
                  t.heads);
    rules.require(!t.bias.query, path + "bias.query", "a query that is the key has the key's bias");
  }
  if (const Nonlinear* nonlinear = std::get_if<Nonlinear>(&t.query)) {
    rules.in_range(path + "query.nonlinear.width", nonlinear->width);
  }
}

static void check_scores(Rules& rules, const std::string& path, const Attention& t, int64_t width) {
  if (t.scores == Form::collapsed) {
    rules.require(!t.rope && !t.qk_norm, path + "scores",
                  "collapsed scores allow neither rope nor qk_norm between the factors");
    const bool replaced = is<Dense>(t.key) || is<Shrunk>(t.key) || is<FromValue>(t.key);  // those have their own rule
    rules.require(is<Dense>(t.query) && replaced, path + "scores",
                  "collapsed scores replace query and key: leave both dense");
    rules.require(!t.bias.key, path + "bias.key", "collapsed scores have no key bias: softmax ignores it");
  }
  if (is<Shrunk>(t.key)) {
    rules.require(t.scores == Form::factored && !t.rope && !t.qk_norm && !is<SameAsKey>(t.query),
                  path + "pairs.query_key", "shrunk needs a stored dense key of its own, and neither rope nor qk_norm");
    rules.require(t.head_width < width, path + "pairs.query_key", "shrunk needs head_width {} < width {}", t.head_width,
                  width);
  }
}

static void check_values(Rules& rules, const std::string& path, const Attention& t, int64_t width) {
  if (t.values == Form::collapsed) {
    const bool replaced = is<Dense>(t.value) || is<Shrunk>(t.value) || is<FromKey>(t.value);
    rules.require(replaced && is<Dense>(t.output), path + "values",
                  "collapsed values replace value and output: leave both dense");
    rules.require(!t.bias.value, path + "bias.value", "collapsed values have only an output bias");
  }
  if (is<Shrunk>(t.value)) {
    rules.require(t.values == Form::factored, path + "pairs.value_output", "shrunk needs a stored dense value");
    rules.require(t.head_width < width, path + "pairs.value_output", "shrunk needs head_width {} < width {}",
                  t.head_width, width);
  }
}

static void check_cache(Rules& rules, const std::string& path, const Attention& t) {
  if (cache_word(t) == CacheWord::kv) {
    return;
  }
  rules.require(t.mask == Mask::causal, path + "cache", "only causal attention is cached");
  rules.require(t.scores == Form::factored && t.values == Form::factored, path + "cache",
                "needs factored scores and values");
  rules.require(!is<FromValue>(t.key) || (!is<SameAsKey>(t.query) && !is<FromKey>(t.value)), path + "cache",
                "v replaces the key matrix: leave key dense, and query not 'key'");
}

void check_attention(Rules& rules, const std::string& path, const Block& block, int64_t width) {
  const Attention& t = block.attention;
  const size_t before = rules.problems.list().size();
  rules.in_range(path + "heads", t.heads);
  rules.in_range(path + "kv_heads", t.kv_heads);
  rules.in_range(path + "head_width", t.head_width);
  if (rules.problems.list().size() != before) {
    return;
  }
  rules.require(t.heads % t.kv_heads == 0, path + "kv_heads", "{} does not divide heads {}", t.kv_heads, t.heads);
  if (t.window) {
    rules.in_range(path + "window", *t.window);
  }
  if (t.softcap) {
    rules.require(*t.softcap > 0, path + "softcap", "{} is not positive", *t.softcap);
  }
  if (t.rope) {
    check_rope(rules, path + "rope.", *t.rope, t.head_width);
  }
  check_projections(rules, path, t, width);
  check_scores(rules, path, t, width);
  check_values(rules, path, t, width);
  check_cache(rules, path, t);
  check_norm(rules, path + "norm", t.norm, block.wiring == Wiring::serial);
  check_norm(rules, path + "output_norm", t.output_norm, false);
  check_norm(rules, path + "qk_norm", t.qk_norm, true);
  rules.require(!t.qk_norm || (t.qk_norm->kind != NormKind::dyt && t.qk_norm->kind != NormKind::scale),
                path + "qk_norm.kind", "must be rms or layer");
  rules.require(t.qk_norm || t.qk_norm_over == QkNormOver::head, path + "qk_norm_over", "there is no qk_norm");
  rules.require(!norms_turned(t) || t.rope, path + "qk_norm.place", "post is behind rope, and there is none");
  rules.require(!norms_turned(t) || t.qk_norm_over == QkNormOver::head, path + "qk_norm.place",
                "post is for norms of each head with one gain");
  if (t.alibi) {
    rules.require(t.alibi->steepest > 0, path + "alibi.steepest", "{} is not positive", t.alibi->steepest);
  }
}

// ---- what it stores

// A key or a value: a matrix that reads the input, one with an identity block cut out, or no matrix.
static void add_reader(Slots& slots, const Projection& projection, const ModuleId& module, const Attention& t,
                       int64_t width, Part part) {
  if (is<Dense>(projection)) {
    slots.add(weight_of(module), {t.kv_heads * t.head_width, width}, part, {reads(Point::attention_input)});
  } else if (is<Shrunk>(projection)) {
    slots.add_index(module, {t.kv_heads, t.head_width}, part);
    slots.add(weight_of(module), {t.kv_heads, t.head_width, width - t.head_width}, part);
    slots.touch(Point::attention_input, TouchKind::shrunk, module);
  } else if (is<Identity>(projection)) {
    slots.touch(Point::attention_input, TouchKind::identity, module);
  }
}

static void add_scores(Slots& slots, const Attention& t, int64_t block, int64_t width) {
  const int64_t rows = t.heads * t.head_width, kv_rows = t.kv_heads * t.head_width;
  if (t.scores == Form::collapsed) {
    const ModuleId both = in_attention(block, Slot::query_key);
    slots.add(weight_of(both), {t.heads, width, width}, Part::query_key,
              {reads(Point::attention_input, 1), reads(Point::attention_input, 2)});
    if (t.bias.query) {
      slots.add(bias_of(both), {t.heads, width}, Part::bias, {reads(Point::attention_input, 1)});
    }
    return;
  }
  const ModuleId query = in_attention(block, Slot::query), key = in_attention(block, Slot::key);
  if (is<Dense>(t.query)) {
    slots.add(weight_of(query), {rows, width}, Part::query, {reads(Point::attention_input)});
  } else if (!is<SameAsKey>(t.query)) {  // a nonlinear query is x + N(x): the identity, and more
    slots.touch(Point::attention_input, TouchKind::identity, query);
  }
  if (const Nonlinear* nonlinear = std::get_if<Nonlinear>(&t.query)) {
    slots.add(weight_of(in_attention(block, Slot::query_up)), {nonlinear->width, width}, Part::query,
              {reads(Point::attention_input)});
    slots.add(weight_of(in_attention(block, Slot::query_down)), {width, nonlinear->width}, Part::query);
  }
  slots.add_bias(t.bias.query, query, rows);
  if (is<FromValue>(t.key)) {
    slots.add(weight_of(in_attention(block, Slot::key_from_value)), {kv_rows, kv_rows}, Part::key);
  }
  add_reader(slots, t.key, key, t, width, Part::key);
  slots.add_bias(t.bias.key, key, kv_rows);
}

static void add_values(Slots& slots, const Attention& t, int64_t block, int64_t width) {
  const int64_t kv_rows = t.kv_heads * t.head_width;
  if (t.values == Form::collapsed) {
    slots.add(weight_of(in_attention(block, Slot::value_output)), {t.heads, width, width}, Part::value_output,
              {reads(Point::attention_input, 1), writes(Point::attention_output, 2)});
    return;
  }
  if (is<FromKey>(t.value)) {
    slots.add(weight_of(in_attention(block, Slot::value_from_key)), {kv_rows, kv_rows}, Part::value);
  }
  const ModuleId value = in_attention(block, Slot::value);
  add_reader(slots, t.value, value, t, width, Part::value);
  slots.add_bias(t.bias.value, value, kv_rows);
}

static void add_output(Slots& slots, const Attention& t, int64_t block, int64_t width) {
  const ModuleId output = in_attention(block, Slot::output);
  if (t.values == Form::factored && is<Dense>(t.output)) {
    slots.add(weight_of(output), {width, t.heads * t.head_width}, Part::output, {writes(Point::attention_output)});
  } else if (t.values == Form::factored) {
    slots.touch(Point::attention_output, TouchKind::identity, output);
  }
  slots.add_bias(t.bias.output, output, width, {writes(Point::attention_output)});
}

void add_attention_slots(Slots& slots, const Architecture& a, int64_t block) {
  const Attention& t = a.blocks[block].attention;
  const bool tabled = is_tabled(a, block);
  if (!tabled || (t.norm && t.norm->place == NormPlace::post)) {
    slots.add_norm(t.norm, in_attention(block, Slot::norm), {a.width});
  }
  if (!tabled) {
    add_scores(slots, t, block, a.width);
    add_values(slots, t, block, a.width);
  }
  add_output(slots, t, block, a.width);
  slots.add_norm(t.qk_norm, in_attention(block, Slot::query_norm), qk_norm_shape(t, t.heads));
  slots.add_norm(t.qk_norm, in_attention(block, Slot::key_norm), qk_norm_shape(t, t.kv_heads));
  if (t.gate) {
    const ModuleId gate = in_attention(block, Slot::gate);
    slots.add(weight_of(gate), {t.heads, a.width}, Part::gate, {reads(Point::attention_input)});
    slots.add({gate, TensorKind::position}, {t.heads, a.width}, Part::gate);
    slots.add_bias(true, gate, t.heads);
  }
  if (t.shaped) {  // alpha, beta, gamma of each head: all one where training starts, so that uniform scores cancel
    slots.add(weight_of(in_attention(block, Slot::shape)), {t.heads, 3}, Part::shape, {}, 1);
  }
  slots.add_norm(t.output_norm, in_attention(block, Slot::output_norm), {a.width});
}

}  // namespace pare
