#include "pare/arch/architecture_json.h"

#include "pare/arch/json_fields.h"
#include "pare/arch/validate.h"

namespace pare {

// Found by json_fields.h through their argument's namespace, so they stand in pare itself, static.

static Words<Task> words(Task) {
  return {{Task::causal_lm, "causal_lm"},
          {Task::masked_lm, "masked_lm"},
          {Task::encoder, "encoder"},
          {Task::classifier, "classifier"},
          {Task::token_classifier, "token_classifier"},
          {Task::question_answering, "question_answering"},
          {Task::next_sentence, "next_sentence"}};
}
static Words<Position> words(Position) {
  return {{Position::none, "none"}, {Position::learned, "learned"}, {Position::sinusoidal, "sinusoidal"}};
}
static Words<Wiring> words(Wiring) {
  return {{Wiring::serial, "serial"}, {Wiring::parallel, "parallel"}};
}
static Words<NormKind> words(NormKind) {
  return {{NormKind::rms, "rms"}, {NormKind::layer, "layer"}, {NormKind::dyt, "dyt"}};
}
static Words<NormPlace> words(NormPlace) {
  return {{NormPlace::pre, "pre"}, {NormPlace::post, "post"}};
}
static Words<Mask> words(Mask) {
  return {{Mask::causal, "causal"}, {Mask::full, "full"}};
}
static Words<RopeLayout> words(RopeLayout) {
  return {{RopeLayout::half, "half"}, {RopeLayout::interleaved, "interleaved"}};
}
static Words<RopeScalingKind> words(RopeScalingKind) {
  return {{RopeScalingKind::linear, "linear"},
          {RopeScalingKind::dynamic, "dynamic"},
          {RopeScalingKind::yarn, "yarn"},
          {RopeScalingKind::longrope, "longrope"},
          {RopeScalingKind::llama3, "llama3"}};
}
static Words<Activation> words(Activation) {
  return {
      {Activation::gelu, "gelu"}, {Activation::gelu_tanh, "gelu_tanh"},       {Activation::relu, "relu"},
      {Activation::silu, "silu"}, {Activation::sigmoid, "sigmoid"},           {Activation::quick_gelu, "quick_gelu"},
      {Activation::tanh, "tanh"}, {Activation::relu_squared, "relu_squared"}, {Activation::identity, "identity"}};
}
static Words<Form> words(Form) {
  return {{Form::factored, "factored"}, {Form::collapsed, "collapsed"}};
}
static Words<PairForm> words(PairForm) {
  return {{PairForm::full, "full"}, {PairForm::shrunk, "shrunk"}};
}
static Words<CacheKind> words(CacheKind) {
  return {{CacheKind::kv, "kv"}, {CacheKind::k, "k"}, {CacheKind::v, "v"}, {CacheKind::x, "x"}};
}
static Words<MlpKind> words(MlpKind) {
  return {{MlpKind::dense, "dense"}, {MlpKind::heads, "heads"}};
}
static Words<Gate> words(Gate) {
  return {{Gate::position, "position"}};
}
static Words<FirstLayer> words(FirstLayer) {
  return {{FirstLayer::dense, "dense"}, {FirstLayer::table, "table"}};
}
static Words<Pool> words(Pool) {
  return {{Pool::first, "first"}, {Pool::last, "last"}, {Pool::none, "none"}};
}
static Words<FactorScope> words(FactorScope) {
  return {{FactorScope::token, "token"}, {FactorScope::sum, "sum"}};
}

template <class Io>
static void describe(Io& io, Norm& n) {
  io.required("kind", n.kind);
  io.optional("place", n.place, NormPlace::pre);
  io.optional("epsilon", n.epsilon, 1e-5);
  io.optional("gain", n.gain, true);
  io.optional("bias", n.bias, false);
  io.optional("offset", n.offset, 0.0);
}

// Only the keys of its own kind are read and written.
template <class Io>
static void describe(Io& io, RopeScaling& s) {
  io.required("kind", s.kind);
  const RopeScaling fallback;
  if (s.kind != RopeScalingKind::longrope) {
    io.required("factor", s.factor);
  }
  if (s.kind != RopeScalingKind::linear) {
    io.required("original_context", s.original_context);
  }
  if (s.kind == RopeScalingKind::yarn || s.kind == RopeScalingKind::longrope) {
    io.required("attention_factor", s.attention_factor);
  }
  if (s.kind == RopeScalingKind::yarn) {
    io.optional("beta_fast", s.beta_fast, fallback.beta_fast);
    io.optional("beta_slow", s.beta_slow, fallback.beta_slow);
    io.optional("truncate", s.truncate, fallback.truncate);
  }
  if (s.kind == RopeScalingKind::llama3) {
    io.optional("low_frequency", s.low_frequency, fallback.low_frequency);
    io.optional("high_frequency", s.high_frequency, fallback.high_frequency);
  }
  if (s.kind == RopeScalingKind::longrope) {
    io.required("short_factor", s.short_factor);
    io.required("long_factor", s.long_factor);
  }
}

template <class Io>
static void describe(Io& io, Rope& r) {
  io.optional("theta", r.theta, 10000.0);
  io.optional("width", r.width, int64_t{0});
  io.optional("layout", r.layout, RopeLayout::half);
  io.nullable("scaling", r.scaling);
}

template <class Io>
static void describe(Io& io, Alibi& a) {
  io.optional("scaled", a.scaled, true);
}

template <class Io>
static void describe(Io& io, NonlinearQuery& n) {
  io.required("width", n.width);
  io.optional("activation", n.activation, Activation::gelu);
}

// "dense", "identity" and "key" are words; {"nonlinear": {...}} is the one form with settings.
struct NonlinearForm {
  NonlinearQuery nonlinear;
};
template <class Io>
static void describe(Io& io, NonlinearForm& f) {
  io.required("nonlinear", f.nonlinear);
}

static std::string read_special(const nlohmann::json& json, Projection& p) {
  const std::string expected = "dense, identity, key or {\"nonlinear\": {\"width\": N, \"activation\": A}}";
  if (json.is_object()) {
    Problems problems;
    NonlinearForm form;
    JsonReader reader(json, "", problems);
    describe(reader, form);
    reader.finish();
    p = {ProjectionKind::nonlinear, form.nonlinear};
    return problems.empty() ? "" : expected;
  }
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  if (text == "dense") {
    p.kind = ProjectionKind::dense;
  } else if (text == "identity") {
    p.kind = ProjectionKind::identity;
  } else if (text == "key") {
    p.kind = ProjectionKind::key;
  } else {
    return expected;
  }
  return "";
}

static nlohmann::ordered_json write_special(Projection& p) {
  switch (p.kind) {
    case ProjectionKind::dense:
      return "dense";
    case ProjectionKind::identity:
      return "identity";
    case ProjectionKind::key:
      return "key";
    case ProjectionKind::nonlinear: {
      NonlinearForm form{p.nonlinear};
      JsonWriter writer;
      describe(writer, form);
      return writer.json;
    }
  }
  PARE_CHECK(false, "a projection without a form");
}

template <class Io>
static void describe(Io& io, AttentionBias& b) {
  io.optional("query", b.query, false);
  io.optional("key", b.key, false);
  io.optional("value", b.value, false);
  io.optional("output", b.output, false);
}

template <class Io>
static void describe(Io& io, Pairs& p) {
  io.optional("value_output", p.value_output, PairForm::full);
  io.optional("query_key", p.query_key, PairForm::full);
}

template <class Io>
static void describe(Io& io, Attention& a) {
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
  io.nullable("softcap", a.softcap);
  io.nullable("gate", a.gate);
  io.nullable("norm", a.norm);
  io.nullable("output_norm", a.output_norm);
  io.optional("skip", a.skip, true);
  io.optional("pairs", a.pairs, Pairs{});
  io.optional("cache", a.cache, CacheKind::kv);
  if (a.rope && a.rope->width == 0) {
    a.rope->width = a.head_width;
  }
}

template <class Io>
static void describe(Io& io, MlpBias& b) {
  io.optional("up", b.up, false);
  io.optional("gate", b.gate, false);
  io.optional("down", b.down, false);
}

template <class Io>
static void describe(Io& io, Mlp& m) {
  io.optional("kind", m.kind, MlpKind::dense);
  io.required("width", m.width);
  if (m.kind == MlpKind::heads) {  // attention over {self, extra token}: the sigmoid is the softmax's
    io.optional("shared_value", m.shared_value, false);
  } else {
    io.required("activation", m.activation);
    io.optional("gated", m.gated, false);
  }
  io.optional("bias", m.bias, MlpBias{});
  io.nullable("norm", m.norm);
  io.nullable("output_norm", m.output_norm);
  io.optional("skip", m.skip, true);
}

template <class Io>
static void describe(Io& io, Block& b) {
  io.optional("repeat", b.repeat, int64_t{1});
  io.optional("wiring", b.wiring, Wiring::serial);
  io.required("attention", b.attention);
  io.nullable("mlp", b.mlp);
  if (b.mlp && b.wiring == Wiring::parallel) {  // one sum, one skip: the attention's
    b.mlp->skip = b.attention.skip;
  }
}

template <class Io>
static void describe(Io& io, Patch& p) {
  io.required("size", p.size);
  io.optional("channels", p.channels, int64_t{3});
  io.required("image", p.image);
  io.optional("bias", p.bias, true);
}

template <class Io>
static void describe(Io& io, Embedding& e) {
  io.optional("position", e.position, Position::none);
  io.optional("position_offset", e.position_offset, int64_t{0});
  io.nullable("position_pad", e.position_pad);
  io.optional("types", e.types, int64_t{0});
  io.optional("scale", e.scale, 1.0);
  io.nullable("norm", e.norm);
  io.nullable("factor", e.factor);
  io.optional("factor_scope", e.factor_scope, FactorScope::token);
  io.optional("factor_bias", e.factor_bias, false);
  io.optional("class_token", e.class_token, false);
  io.nullable("patch", e.patch);
}

template <class Io>
static void describe(Io& io, HeadTransform& t) {
  io.required("activation", t.activation);
  io.optional("bias", t.bias, true);
  io.nullable("norm", t.norm);
  io.nullable("width", t.width);
}

template <class Io>
static void describe(Io& io, SequenceHead& h) {
  io.required("classes", h.classes);
  io.optional("bias", h.bias, true);
  io.nullable("transform", h.transform);
}

template <class Io>
static void describe(Io& io, Head& h) {
  io.optional("tied", h.tied, false);
  io.optional("bias", h.bias, false);
  io.nullable("classes", h.classes);
  io.nullable("softcap", h.softcap);
  io.nullable("transform", h.transform);
  io.optional("pool", h.pool, Pool::first);
  io.nullable("sequence", h.sequence);
}

template <class Io>
static void describe(Io& io, Architecture& a) {
  io.optional("name", a.name, std::string());
  io.optional("task", a.task, Task::causal_lm);
  io.required("width", a.width);
  io.optional("vocab", a.vocab, int64_t{0});  // validate() asks for it where there are no patches
  io.required("context", a.context);
  io.optional("embedding", a.embedding, Embedding{});
  io.required("blocks", a.blocks);
  io.nullable("layers", a.layers);
  io.optional("first_layer", a.first_layer, FirstLayer::dense);
  io.nullable("final_norm", a.final_norm);
  io.optional("head", a.head, Head{});
}

Architecture architecture_from_json(const nlohmann::json& json, const std::string& subject) {
  Problems problems;
  Architecture architecture;
  JsonReader reader(json, "", problems);
  reader.read(json, "", architecture);
  if (problems.empty()) {  // on a half-read value validation would only invent more
    validate(architecture, problems);
  }
  problems.throw_if_any(subject);
  return architecture;
}

nlohmann::ordered_json architecture_to_json(const Architecture& architecture) {
  Architecture copy = architecture;
  copy.blocks = folded_blocks(copy.blocks);
  return JsonWriter::write(copy);
}

std::string architecture_text(const Architecture& architecture) {
  return architecture_to_json(architecture).dump(2) + "\n";
}

const char* word(Task task) {
  return word_of(task);
}
const char* word(Activation activation) {
  return word_of(activation);
}
const char* word(NormKind kind) {
  return word_of(kind);
}
std::optional<Activation> activation_from_word(const std::string& text) {
  for (const auto& [activation, name] : words(Activation{})) {
    if (text == name) {
      return activation;
    }
  }
  return std::nullopt;
}

}  // namespace pare
