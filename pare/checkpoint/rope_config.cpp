// RoPE settings as Hugging Face spells them. What its code computes from several keys (the attention factor, the
// original context) is computed here once, so that the Architecture holds plain values.

#include "pare/checkpoint/config.h"

#include <fmt/format.h>

#include <cmath>

#include "pare/arch/words.h"
#include "pare/support/names.h"

namespace pare {

namespace {

// "Attention temperature" of YaRN: grows with the logarithm of the stretch.
double yarn_scale(double stretch, double weight) {
  return stretch <= 1 ? 1 : 0.1 * weight * std::log(stretch) + 1;
}

// The context, and whether the one before it was stretched may stand beside the scaling.
struct Context {
  int64_t now = 0;
  bool beside = true;
};

double original_context(Config& config, Config& within, const Context& context) {
  int64_t original = within.integer({"original_max_position_embeddings"}, context.now, 2, most::rows);
  if (context.beside) {  // where it wins over one inside, as in Hugging Face
    original = config.integer({"original_max_position_embeddings"}, original, 2, most::rows);
  }
  return static_cast<double>(original);
}

void read_yarn(Config& config, Config& within, const Context& context, RopeScaling& scaling) {
  scaling.original_context = original_context(config, within, context);
  scaling.factor =
      within.number({"factor"}, static_cast<double>(context.now) / scaling.original_context, above_zero, most::number);
  const double mscale = within.number({"mscale"}, 0, 0, most::number);
  const double mscale_all = within.number({"mscale_all_dim"}, 0, 0, most::number);
  const double implied = mscale != 0 && mscale_all != 0
                             ? yarn_scale(scaling.factor, mscale) / yarn_scale(scaling.factor, mscale_all)
                             : yarn_scale(scaling.factor, 1);
  scaling.attention_factor = within.number({"attention_factor"}, implied, 0, most::number);
  scaling.beta_fast = within.number({"beta_fast"}, 32, 0, most::number);
  scaling.beta_slow = within.number({"beta_slow"}, 1, 0, most::number);
  // Hugging Face takes zero for "not given".
  scaling.beta_fast = scaling.beta_fast == 0 ? 32 : scaling.beta_fast;
  scaling.beta_slow = scaling.beta_slow == 0 ? 1 : scaling.beta_slow;
  scaling.truncate = within.flag("truncate", true);
}

void read_longrope(Config& config, Config& within, const Context& context, int64_t width, RopeScaling& scaling) {
  scaling.original_context = original_context(config, within, context);
  const double stretch =
      within.number({"factor"}, static_cast<double>(context.now) / scaling.original_context, above_zero, most::number);
  const double implied = stretch <= 1 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(scaling.original_context));
  scaling.attention_factor = within.number({"attention_factor"}, implied, 0, most::number);
  scaling.short_factor = within.numbers("short_factor", static_cast<size_t>(width / 2), above_zero, most::number);
  scaling.long_factor = within.numbers("long_factor", static_cast<size_t>(width / 2), above_zero, most::number);
}

void read_llama3(Config& config, Config& within, const Context& context, RopeScaling& scaling) {
  scaling.original_context = original_context(config, within, context);
  for (std::string_view key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (!within.has(key)) {
      config.problem(fmt::format("the rope type llama3 needs the key {}", key));
    }
  }
  scaling.factor = within.number({"factor"}, 8, above_zero, most::number);
  scaling.low_frequency = within.number({"low_freq_factor"}, 1, above_zero, most::number);
  scaling.high_frequency = within.number({"high_freq_factor"}, 4, above_zero, most::number);
}

std::optional<RopeScaling> read_scaling(Config& config, Config& within, const Context& context, const Rope& rope) {
  const std::string older_name = within.text("type", "default");
  const std::string type = within.text("rope_type", older_name);
  if (type == "default") {
    return std::nullopt;
  }
  RopeScaling scaling;
  if (type == "linear" || type == "dynamic") {
    scaling.kind = type == "linear" ? RopeScalingKind::linear : RopeScalingKind::dynamic;
    if (!within.has("factor")) {
      config.problem(fmt::format("the rope type {} needs the key factor", type));
    }
    scaling.factor = within.number({"factor"}, 1, above_zero, most::number);
    if (type == "dynamic") {
      scaling.original_context = static_cast<double>(context.now);
      within.neutral({"original_max_position_embeddings"});
    }
  } else if (type == "yarn") {
    scaling.kind = RopeScalingKind::yarn;
    read_yarn(config, within, context, scaling);
  } else if (type == "longrope") {
    scaling.kind = RopeScalingKind::longrope;
    read_longrope(config, within, context, rope.width, scaling);
  } else if (type == "llama3") {
    scaling.kind = RopeScalingKind::llama3;
    read_llama3(config, within, context, scaling);
  } else {
    config.problem(
        fmt::format("the rope type {} is not supported; supported are default, linear, dynamic, yarn, "
                    "longrope, llama3",
                    quote(type)));
  }
  return scaling;
}

}  // namespace

// What is turned, from the object `within`; where that says nothing, what older files say beside it, and the family.
static Rope read_turn(Config& config, Config& within, const RopeSettings& settings, int64_t head_width) {
  Rope rope;
  rope.layout = settings.layout;
  const double theta = settings.theta_key.empty()
                           ? settings.theta
                           : config.number({settings.theta_key}, settings.theta, above_zero, most::number);
  rope.theta = within.number({"rope_theta"}, theta, above_zero, most::number);
  const double part = settings.partial.value_or(1);
  const double least = settings.partial ? 1e-6 : 1;
  const double partial =
      within.number({"partial_rotary_factor"}, config.number({settings.partial_key}, part, least, 1), least, 1);
  if (settings.partial_key != "partial_rotary_factor") {
    config.only("partial_rotary_factor", partial, fmt::format("this family reads {}", settings.partial_key));
  }
  rope.width = static_cast<int64_t>(static_cast<double>(head_width) * partial);
  return rope;
}

Rope read_rope(Config& config, const RopeSettings& settings, int64_t head_width, int64_t context) {
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    const nlohmann::json& parameters = config.raw("rope_parameters");
    if (parameters.is_object() && parameters.contains(kind)) {
      config.problem(
          fmt::format("rope_parameters has settings for {} alone: all layers of this family turn alike", quote(kind)));
    }
  }
  // The older name wins where both are there and it is not empty, as in Hugging Face.
  const bool older = config.raw("rope_scaling").is_object() && !config.raw("rope_scaling").empty();
  Config within = config.inner(older || !config.has("rope_parameters") ? "rope_scaling" : "rope_parameters");
  config.neutral({"rope_parameters", "rope_scaling"});

  Rope rope = read_turn(config, within, settings, head_width);
  // Where the family has names of its own, Hugging Face reads no others: those may repeat, and not contradict.
  if (settings.theta_key != "rope_theta") {
    config.only("rope_theta", rope.theta, fmt::format("this family reads {}", settings.theta_key));
  }
  rope.scaling = read_scaling(config, within, {context}, rope);
  within.finish();
  return rope;
}

RopePair read_ropes(Config& config, const RopeKinds& kinds, int64_t head_width, int64_t context) {
  const nlohmann::json older = config.inner("rope_scaling").everything();
  Config parameters = config.inner("rope_parameters");
  const auto read = [&](std::string_view kind, const RopeSettings& settings, bool scaled) {
    nlohmann::json object = parameters.inner(kind).everything();
    if (scaled && !older.empty()) {
      // Hugging Face puts it over settings that are already there, or over those of plain RoPE.
      if (object.empty() && older.contains("type") && !older.contains("rope_type") && older["type"] != "default") {
        config.problem("rope_scaling has a type, but no rope_type, which is what Hugging Face reads in this family");
      }
      object.update(older);
    }
    Config within = parameters.inner(kind, object);
    Rope rope = read_turn(config, within, settings, head_width);
    rope.scaling = read_scaling(config, within, {.now = context, .beside = false}, rope);
    if (rope.scaling && !rope.scaling->truncate) {  // it looks for the key outside of this object
      rope.scaling->truncate = true;
    }
    within.finish();
    return rope;
  };
  const RopePair ropes = {read("full_attention", kinds.full, true),
                          read("sliding_attention", kinds.sliding, kinds.both_scaled)};
  parameters.finish();
  return ropes;
}

// What is written of a scaling, beside its kind.
static std::vector<std::pair<const char*, nlohmann::ordered_json>> keys_of(const RopeScaling& s) {
  const std::pair<const char*, nlohmann::ordered_json> factor = {"factor", s.factor},
                                                       original = {"original_max_position_embeddings",
                                                                   static_cast<int64_t>(s.original_context)},
                                                       attention = {"attention_factor", s.attention_factor};
  switch (s.kind) {
    case RopeScalingKind::linear:
    case RopeScalingKind::dynamic:
      return {factor};
    case RopeScalingKind::yarn:
      return {factor,
              original,
              attention,
              {"beta_fast", s.beta_fast},
              {"beta_slow", s.beta_slow},
              {"truncate", s.truncate}};
    case RopeScalingKind::longrope:
      return {original, attention, {"short_factor", s.short_factor}, {"long_factor", s.long_factor}};
    case RopeScalingKind::llama3:
      return {factor, original, {"low_freq_factor", s.low_frequency}, {"high_freq_factor", s.high_frequency}};
  }
  PARE_UNREACHABLE("a kind of scaling without keys");
}

// As rope_parameters has it.
static nlohmann::ordered_json parameters_of(const Rope& rope, std::optional<double> part) {
  nlohmann::ordered_json parameters = {{"rope_type", "default"}};
  if (rope.scaling) {
    parameters["rope_type"] = word_of(rope.scaling->kind);
    for (const auto& [key, value] : keys_of(*rope.scaling)) {
      parameters[key] = value;
    }
  }
  parameters["rope_theta"] = rope.theta;
  if (part) {
    parameters["partial_rotary_factor"] = *part;
  }
  return parameters;
}

// As rope_scaling has it: null where there is none.
static nlohmann::ordered_json scaling_of(const Rope& rope) {
  nlohmann::ordered_json scaling;
  if (rope.scaling) {
    scaling = parameters_of(rope, std::nullopt);
    scaling.erase("rope_theta");
  }
  return scaling;
}

// The part that turns, where it is written.
static std::optional<double> part_of(const RopeSettings& settings, const Rope& rope, int64_t head_width) {
  if (rope.width == head_width && !settings.partial) {
    return std::nullopt;
  }
  // Readers multiply and cut: the quotient must not fall short of the width by a rounding.
  const double part = static_cast<double>(rope.width) / static_cast<double>(head_width);
  return static_cast<int64_t>(static_cast<double>(head_width) * part) < rope.width ? std::nextafter(part, 1.0) : part;
}

void write_rope(nlohmann::ordered_json& config, const RopeSettings& settings, const Rope& rope, int64_t head_width) {
  const std::optional<double> part = part_of(settings, rope, head_width);
  config["rope_theta"] = rope.theta;
  config["rope_scaling"] = scaling_of(rope);
  if (part) {
    config["partial_rotary_factor"] = *part;
  }
  config["rope_parameters"] = parameters_of(rope, part);
  config[settings.theta_key] = rope.theta;
  if (part) {
    config[settings.partial_key] = *part;
  }
}

void write_ropes(nlohmann::ordered_json& config, const RopeKinds& kinds, const RopePair& ropes, int64_t head_width) {
  config["rope_scaling"] = kinds.both_scaled ? nullptr : scaling_of(ropes.full);
  for (const auto& [kind, settings, rope] : {std::tuple{"full_attention", &kinds.full, &ropes.full},
                                             {"sliding_attention", &kinds.sliding, &ropes.sliding}}) {
    if (!settings->theta_key.empty()) {
      config[settings->theta_key] = rope->theta;
    }
    config["rope_parameters"][kind] = parameters_of(*rope, part_of(*settings, *rope, head_width));
  }
}

}  // namespace pare
