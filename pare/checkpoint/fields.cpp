#include "pare/checkpoint/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pare::field {

using nlohmann::ordered_json;

Field whole(int64_t& (*of)(Draft&), int64_t most, int64_t (*implied)(const Draft&)) {
  return {[=](Config& config, const Key& key, Draft& draft) {
            const int64_t fallback = key.fallback.is_null() ? implied(draft) : key.fallback.get<int64_t>();
            of(draft) = config.integer(key.names, fallback, 1, most);
          },
          [=](ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = of(draft); }};
}

Field whole(int64_t (*get)(const Draft&), void (*set)(Draft&, int64_t), int64_t least, int64_t most) {
  return {[=](Config& config, const Key& key, Draft& draft) { set(draft, key.whole(config, least, most)); },
          [=](ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = get(draft); }};
}

Field flag(bool (*get)(const Draft&), void (*set)(Draft&, bool)) {
  return {[=](Config& config, const Key& key, Draft& draft) {
            set(draft, config.flag(key.name(), key.fallback.get<bool>()));
          },
          [=](ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = get(draft); }};
}

void each_norm(Draft& draft, const std::function<void(Norm&)>& change) {
  std::optional<HeadTransform>& transform = draft.a.head.transform;
  for (std::optional<Norm>* norm :
       {&draft.a.embedding.norm, &draft.block.attention.norm, &draft.block.attention.output_norm,
        &draft.block.attention.qk_norm, &draft.block.mlp->norm, &draft.block.mlp->output_norm, &draft.a.final_norm}) {
    if (*norm && (*norm)->kind != NormKind::scale) {
      change(**norm);
    }
  }
  if (transform && transform->norm) {
    change(*transform->norm);
  }
}

namespace {

// None also where there is no default.
std::optional<double> number_or_none(Config& config, const Key& key) {
  const bool has_default = !key.fallback.is_null();
  const double value = config.number(key.names, has_default ? key.fallback.get<double>() : 1, above_zero, most::number);
  const bool none = config.is_null(key.name()) || (!has_default && !config.has(key.name()));
  return none ? std::nullopt : std::optional(value);
}

Field number_or_null(std::optional<double>& (*of)(Draft&)) {
  return {[=](Config& config, const Key& key, Draft& draft) { of(draft) = number_or_none(config, key); },
          [=](ordered_json& config, const Key& key, Draft& draft) {
            config[key.name()] = of(draft) ? ordered_json(*of(draft)) : nullptr;
          }};
}

void write_own(ordered_json& config, const Key& key, Draft& draft) {
  config[key.name()] = draft.block.attention.head_width;
}

void read_own(Config& config, const Key& key, Draft& draft) {
  int64_t& own = draft.block.attention.head_width;
  if (config.has(key.name()) || !key.fallback.is_null()) {
    draft.uneven.clear();
  } else if (!draft.uneven.empty()) {
    draft.uneven += fmt::format(", and there is no {}", key.name());
  }
  own = config.integer(key.names, key.fallback.is_null() ? own : key.fallback.get<int64_t>(), 1, most::width);
}

bool has_labels(const Architecture& a) {
  return a.task == Task::classifier || a.task == Task::token_classifier;
}

}  // namespace

const Field vocab = whole([](Draft& d) -> int64_t& { return d.a.vocab; }, most::rows);
const Field context = whole([](Draft& d) -> int64_t& { return d.a.context; }, most::rows);
const Field types = whole([](Draft& d) -> int64_t& { return d.a.embedding.types; }, most::rows);
const Field layers = whole([](Draft& d) -> int64_t& { return d.layers; }, most::layers);
const Field mlp_width = whole([](Draft& d) -> int64_t& { return d.mlp.width; }, 4 * most::width,
                              [](const Draft& d) { return 4 * d.a.width; });

const Field width = {[](Config& config, const Key& key, Draft& draft) {
                       draft.a.width = key.whole(config, 1, most::width);
                       draft.width_key = key.name();
                     },
                     [](ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = draft.a.width; }};

// In float64 this is what Hugging Face has; in a narrower type it rounds the root before multiplying, we do after.
const Field scaled_width = {[](Config& config, const Key& key, Draft& draft) {
                              width.read(config, key, draft);
                              draft.a.embedding.scale = std::sqrt(static_cast<double>(draft.a.width));
                            },
                            width.write};

const Field epsilon = {[](Config& config, const Key& key, Draft& draft) {
                         const double value = key.number(config, 0);
                         each_norm(draft, [&](Norm& norm) { norm.epsilon = value; });
                       },
                       [](ordered_json& config, const Key& key, Draft& draft) {
                         const std::optional<Norm>& norm =
                             draft.a.final_norm ? draft.a.final_norm : draft.a.embedding.norm;
                         config[key.name()] = norm.value_or(Norm{}).epsilon;
                       }};

const Field parallel = flag([](const Draft& d) { return d.block.wiring == Wiring::parallel; },
                            [](Draft& d, bool value) { d.block.wiring = value ? Wiring::parallel : Wiring::serial; });

const Field heads = {
    [](Config& config, const Key& key, Draft& draft) {
      Attention& attention = draft.block.attention;
      attention.heads = key.whole(config, 1, most::heads);
      attention.kv_heads = attention.heads;
      attention.head_width = std::max<int64_t>(draft.a.width / attention.heads, 1);
      if (draft.a.width % attention.heads != 0) {
        draft.uneven =
            fmt::format("{} {} does not divide {} {}", key.name(), attention.heads, draft.width_key, draft.a.width);
      }
    },
    [](ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = draft.block.attention.heads; }};

const Field kv_heads = {
    [](Config& config, const Key& key, Draft& draft) {
      Attention& attention = draft.block.attention;
      const bool own_keys = key.fallback.is_null() || config.is_null(key.name());
      attention.kv_heads =
          config.integer(key.names, own_keys ? attention.heads : key.fallback.get<int64_t>(), 1, most::heads);
    },
    [](ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = draft.block.attention.kv_heads; }};

const Field head_width = {read_own, write_own};
const Field odd_head_width = {read_own, [](ordered_json& config, const Key& key, Draft& draft) {
                                if (draft.block.attention.heads * draft.block.attention.head_width != draft.a.width) {
                                  write_own(config, key, draft);
                                }
                              }};

const Field attention_bias = flag([](const Draft& d) { return d.block.attention.bias.query; },
                                  [](Draft& d, bool value) {
                                    d.block.attention.bias = {value, value, value, value};
                                  });
const Field qkv_bias = flag([](const Draft& d) { return d.block.attention.bias.query; },
                            [](Draft& d, bool value) {
                              AttentionBias& bias = d.block.attention.bias;
                              bias.query = bias.key = bias.value = value;
                            });
const Field output_bias = flag([](const Draft& d) { return d.block.attention.bias.output; },
                               [](Draft& d, bool value) { d.block.attention.bias.output = value; });
const Field mlp_bias = flag([](const Draft& d) { return d.mlp.bias.up; },
                            [](Draft& d, bool value) {
                              d.mlp.bias = {value, value && d.mlp.gated, value};
                            });
const Field biases = flag([](const Draft& d) { return d.block.attention.bias.query; },
                          [](Draft& d, bool value) {
                            d.block.attention.bias = {value, value, value, value};
                            d.mlp.bias = {value, value && d.mlp.gated, value};
                          });
const Field qk_norm =
    flag([](const Draft& d) { return d.block.attention.qk_norm.has_value(); },
         [](Draft& d, bool value) { d.block.attention.qk_norm = value ? d.block.attention.norm : std::nullopt; });

const Field softcap = number_or_null([](Draft& d) -> std::optional<double>& { return d.block.attention.softcap; });
const Field head_softcap = {[](Config& config, const Key& key, Draft& draft) {
                              const std::optional<double> value = number_or_none(config, key);
                              if (draft.a.task == Task::causal_lm) {
                                draft.a.head.softcap = value;
                              }
                            },
                            number_or_null([](Draft& d) -> std::optional<double>& { return d.a.head.softcap; }).write};

Field rope(const RopeSettings& settings) {
  return {[=](Config& config, const Key&, Draft& draft) {
            Attention& attention = draft.block.attention;
            attention.rope = read_rope(config, settings, attention.head_width, draft.a.context);
          },
          [=](ordered_json& config, const Key&, Draft& draft) {
            const int64_t head_width = draft.block.attention.head_width;
            Rope rope = {.width = head_width};
            const auto turns = [](const Block& block) { return block.attention.rope.has_value(); };
            if (const auto first = std::ranges::find_if(draft.a.blocks, turns); first != draft.a.blocks.end()) {
              rope = *first->attention.rope;
            }
            write_rope(config, settings, rope, head_width);
          }};
}

Field rope_by_type(const RopeKinds& kinds) {
  return {[=](Config& config, const Key&, Draft& draft) {
            const RopePair ropes = read_ropes(config, kinds, draft.block.attention.head_width, draft.a.context);
            draft.by_layer.emplace_back([=](int64_t, Block& block) {
              block.attention.rope = block.attention.window ? ropes.sliding : ropes.full;
            });
          },
          [=](ordered_json& config, const Key&, Draft& draft) {
            const int64_t head_width = draft.block.attention.head_width;
            const auto rope_of = [&](bool sliding, double theta) {  // of the first such layer
              const auto fits = [&](const Block& b) {
                return b.attention.window.has_value() == sliding && b.attention.rope.has_value();
              };
              const auto first = std::ranges::find_if(draft.a.blocks, fits);
              return first == draft.a.blocks.end() ? Rope{.theta = theta, .width = head_width} : *first->attention.rope;
            };
            const RopePair ropes = {rope_of(false, kinds.full.theta), rope_of(true, kinds.sliding.theta)};
            write_ropes(config, kinds, ropes, head_width);
          }};
}

const Field activation = {[](Config& config, const Key& key, Draft& draft) {
                            draft.mlp.activation = config.activation(key.name(), key.fallback.get<std::string>());
                          },
                          [](ordered_json& config, const Key& key, Draft& draft) {
                            config[key.name()] = hugging_face_activation(draft.mlp.activation);
                          }};

const Field same_activation = {[](Config& config, const Key& key, Draft& draft) {
  const nlohmann::json& found = config.raw(key.name());
  if (!found.is_null() && config.activation(key.name(), "") != draft.mlp.activation) {
    config.wrong(key.name(), found,
                 fmt::format("{}, which the model has", hugging_face_activation(draft.mlp.activation)));
  }
}};

// ---- multipliers

namespace {

Field number(double (*get)(const Draft&), void (*set)(Draft&, double)) {
  return {[=](Config& config, const Key& key, Draft& draft) { set(draft, key.number(config, above_zero)); },
          [=](ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = get(draft); }};
}

// No norm, but what multiplies where one would stand.
std::optional<Norm> factor_norm(double factor) {
  return factor == 1 ? std::nullopt : std::optional(Norm{.kind = NormKind::scale, .gain = false, .factor = factor});
}

}  // namespace

const Field embedding_scale = number([](const Draft& d) { return d.a.embedding.scale; },
                                     [](Draft& d, double value) { d.a.embedding.scale = value; });
const Field attention_scale = number([](const Draft& d) { return scale_of(d.block.attention); },
                                     [](Draft& d, double value) {
                                       const double usual = scale_of(d.block.attention);
                                       d.block.attention.scale = value == usual ? std::nullopt : std::optional(value);
                                     });
const Field residual_scale = number(
    [](const Draft& d) {
      const std::optional<Norm>& norm = d.block.attention.output_norm;
      return norm ? norm->factor : 1.0;
    },
    [](Draft& d, double value) { d.block.attention.output_norm = d.block.mlp->output_norm = factor_norm(value); });
const Field head_scale = {
    [](Config& config, const Key& key, Draft& draft) {
      const double value = key.number(config, above_zero);
      if (draft.a.task == Task::causal_lm) {
        draft.a.head.scale = value;
      }
    },
    [](ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = draft.a.head.scale; }};
const Field head_divisor = {[](Config& config, const Key& key, Draft& draft) {
                              const double value = key.number(config, above_zero);
                              if (draft.a.task == Task::causal_lm) {
                                draft.a.head.scale = 1 / value;
                              }
                            },
                            [](ordered_json& config, const Key& key, Draft& draft) {
                              // Of 1/x no digit may be lost: the nearest number whose inverse is the same.
                              double divisor = 1 / draft.a.head.scale;
                              if (const double rounded = std::round(divisor * 1e6) / 1e6;
                                  1 / rounded == draft.a.head.scale) {
                                divisor = rounded;
                              }
                              config[key.name()] = divisor;
                            }};

// ---- windows

namespace {

void read_types(Config& config, std::string_view key, Draft& draft, const std::function<bool(int64_t layer)>& slides) {
  const nlohmann::json types = config.raw(key);
  const std::optional<int64_t> window = std::exchange(draft.block.attention.window, std::nullopt);
  if (!types.is_null() && (!types.is_array() || std::ssize(types) != draft.layers)) {
    config.wrong(key, types, fmt::format("a list of {} names, one for each layer", draft.layers));
    return;
  }
  std::vector<bool> sliding;
  for (int64_t layer = 0; layer < draft.layers; ++layer) {
    const nlohmann::json type = types.is_null() ? nullptr : types[layer];
    sliding.push_back(types.is_null() ? slides(layer) : type == "sliding_attention");
    if (!types.is_null() && !sliding.back() && type != "full_attention" && type != "attention") {
      config.wrong(fmt::format("{}[{}]", key, layer), type, "full_attention or sliding_attention");
    }
    if (sliding.back() && !window) {
      config.problem(fmt::format("layer {} is of the type sliding_attention, but there is no sliding_window", layer));
    }
  }
  draft.by_layer.emplace_back(
      [=](int64_t layer, Block& block) { block.attention.window = sliding[layer] ? window : std::nullopt; });
}

void write_types(ordered_json& config, const Key& key, Draft& draft) {
  config[key.name()] = ordered_json::array();
  for (const Block& block : draft.a.blocks) {
    config[key.name()].push_back(block.attention.window ? "sliding_attention" : "full_attention");
  }
}

}  // namespace

const Field window = {[](Config& config, const Key& key, Draft& draft) {
                        const int64_t fallback = key.fallback.is_null() ? 1 : key.fallback.get<int64_t>();
                        const int64_t value = config.integer(key.names, fallback, 1, most::rows);
                        const bool none =
                            config.is_null(key.name()) || (key.fallback.is_null() && !config.has(key.name()));
                        draft.block.attention.window = none ? std::nullopt : std::optional(value);
                      },
                      [](ordered_json& config, const Key& key, Draft& draft) {
                        config[key.name()] = nullptr;
                        for (const Block& block : draft.a.blocks) {
                          if (block.attention.window) {
                            config[key.name()] = *block.attention.window;
                          }
                        }
                      }};

Field layer_types(const std::function<bool(int64_t)>& slides) {
  return {[=](Config& config, const Key& key, Draft& draft) { read_types(config, key.name(), draft, slides); },
          write_types};
}

const Field late_windows = {
    [](Config& config, const Key& key, Draft& draft) {
      std::optional<int64_t>& window = draft.block.attention.window;
      window = config.flag("use_sliding_window", false) ? window : std::nullopt;
      const bool any = window.has_value();
      const int64_t first = config.integer("max_window_layers", 28, 0, most::layers);
      read_types(config, key.name(), draft, [=](int64_t layer) { return any && layer >= first; });
    },
    [](ordered_json& config, const Key& key, Draft& draft) {
      write_types(config, key, draft);
      const std::vector<Block>& blocks = draft.a.blocks;
      const auto first = std::ranges::find_if(blocks, [](const Block& b) { return b.attention.window.has_value(); });
      config["use_sliding_window"] = first != blocks.end();
      config["max_window_layers"] = first - blocks.begin();
    }};

// ---- the head

const Field tied = {[](Config& config, const Key& key, Draft& draft) {
                      if (draft.a.task == Task::masked_lm) {
                        draft.a.head.tied = config.flag(key.name(), key.fallback.get<bool>());
                      }
                    },
                    [](ordered_json& config, const Key& key, Draft& draft) {
                      if (draft.a.task == Task::masked_lm) {
                        config[key.name()] = draft.a.head.tied;
                      }
                    }};

const Field labels = {[](Config& config, const Key&, Draft& draft) {
                        if (has_labels(draft.a)) {
                          draft.a.head.classes = config.label_count();
                        }
                      },
                      [](ordered_json& config, const Key&, Draft& draft) {
                        if (has_labels(draft.a)) {
                          write_labels(config, draft.a.head.classes.value_or(0));
                        }
                      }};

Field only(const nlohmann::json& value, std::string_view why) {
  return {[=](Config& config, const Key& key, Draft&) { config.only(key.name(), value, why); }};
}

Field repeats(const Field& field, std::string_view why) {
  return {[=](Config& config, const Key& key, Draft& draft) {
    ordered_json said;
    field.write(said, key, draft);
    config.only(key.name(), said[key.name()], why);
  }};
}

Field own_classes(std::string_view begin) {
  return {[=](Config& config, const Key& key, Draft&) {
    const nlohmann::json leaves = config.raw(key.name()).flatten();
    for (const auto& [role, value] : leaves.items()) {
      const std::string path = value.is_string() ? value.get<std::string>() : "";
      // REPOSITORY--FILE.CLASS
      const std::string name = path.substr(path.rfind('.') + 1);
      const bool model = !role.starts_with("/AutoTokenizer") && !role.starts_with("/AutoProcessor");
      if (model && !value.is_null() && !name.starts_with(begin)) {
        config.problem(
            fmt::format("{} names {}: models with code of their own are not supported", key.name(), value.dump()));
      }
    }
  }};
}

}  // namespace pare::field
