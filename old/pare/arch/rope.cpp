#include "pare/arch/rope.h"

#include "pare/arch/sublayer.h"
#include "pare/arch/words.h"

namespace pare {

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
static void fields(Io& io, Rope& r) {
  io.optional("theta", r.theta, 10000.0);
  io.optional("width", r.width, int64_t{0});
  io.optional("layout", r.layout, RopeLayout::half);
  io.nullable("scaling", r.scaling);
}

void describe(JsonReader& io, Rope& rope) {
  fields(io, rope);
}
void describe(JsonWriter& io, Rope& rope) {
  fields(io, rope);
}

void check_rope(Rules& rules, const std::string& path, const Rope& r, int64_t head_width) {
  rules.require(r.theta > 0, path + "theta", "{} is not positive", r.theta);
  rules.in_range(path + "width", r.width, 2, head_width);
  rules.require(r.width % 2 == 0, path + "width", "{} is odd: dimensions turn in pairs", r.width);
  if (!r.scaling) {
    return;
  }
  const RopeScaling& s = *r.scaling;
  const std::string at = path + "scaling.";
  rules.require(s.factor > 0, at + "factor", "{} is not positive", s.factor);
  rules.require(s.kind == RopeScalingKind::linear || s.original_context >= 1, at + "original_context", "{} is below 1",
                s.original_context);
  rules.require(s.attention_factor > 0, at + "attention_factor", "{} is not positive", s.attention_factor);
  rules.require(s.kind != RopeScalingKind::yarn || (s.beta_fast > 0 && s.beta_slow > 0), at + "beta_fast",
                "{} and beta_slow {} must be positive", s.beta_fast, s.beta_slow);
  rules.require(s.kind != RopeScalingKind::yarn || r.theta > 1, path + "theta", "yarn needs theta above 1, found {}",
                r.theta);
  rules.require(s.kind != RopeScalingKind::llama3 || s.low_frequency < s.high_frequency, at + "low_frequency",
                "{} is not below high_frequency {}", s.low_frequency, s.high_frequency);
  rules.require(s.kind != RopeScalingKind::llama3 || s.low_frequency > 0, at + "low_frequency", "{} is not positive",
                s.low_frequency);
  rules.require(s.kind != RopeScalingKind::dynamic || r.width > 2, path + "width",
                "dynamic scaling needs more than one plane");
  if (s.kind == RopeScalingKind::longrope) {
    for (const auto& [name, factors] : {std::pair{"short_factor", &s.short_factor}, {"long_factor", &s.long_factor}}) {
      rules.require(static_cast<int64_t>(factors->size()) == r.width / 2, at + name,
                    "has {} entries, expected width / 2 = {}", factors->size(), r.width / 2);
      for (double factor : *factors) {
        rules.require(factor > 0, at + name, "{} is not positive", factor);
      }
    }
  }
}

}  // namespace pare
