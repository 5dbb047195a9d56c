// GPT-Neo: learned positions, LayerNorm before each sublayer, scores that nothing divides, and layers that look at a
// window between those that look at everything.

#include <fmt/format.h>

#include <algorithm>

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

namespace {

using nlohmann::json;

// A list of patterns, each with how often it comes: [[["global", "local"], 12]]. Empty where it is none; no longer than
// `most` allows by much, however often a pattern is to come.
std::vector<std::string> expand(const json& patterns, int64_t most) {
  std::vector<std::string> layers;
  for (const json& item : patterns.is_array() ? patterns : json::array()) {
    const bool pair = item.is_array() && item.size() == 2 && item[0].is_array() && item[1].is_number_integer();
    for (const json& kind : pair ? item[0] : json::array({nullptr})) {
      if (kind != "global" && kind != "local") {
        return {};
      }
    }
    for (int64_t time = 0; time < item[1].get<int64_t>() && !item[0].empty() && std::ssize(layers) <= most; ++time) {
      for (const json& kind : item[0]) {
        layers.push_back(kind.get<std::string>());
      }
    }
  }
  return layers;
}

const Field kinds_of_layers = {
    [](Config& config, const Key& key, Draft& draft) {
      const std::optional<int64_t> window = std::exchange(draft.block.attention.window, std::nullopt);
      const json patterns = config.has(key.name()) ? config.raw(key.name()) : key.fallback;
      const std::vector<std::string> kinds = expand(patterns, draft.layers);
      if (std::ssize(kinds) != draft.layers) {
        config.wrong(key.name(), patterns,
                     fmt::format("patterns of global and local, each with how often it comes, for {} layers together",
                                 draft.layers));
        return;
      }
      // The same, written out: transformers believes this one.
      const std::string_view list = "attention_layers";
      const json written_out = config.raw(list);
      if ((config.has(list) || config.is_null(list)) && written_out != json(kinds)) {
        config.wrong(list, written_out, fmt::format("what {} says", key.name()));
      }
      if (std::ranges::find(kinds, "local") != kinds.end() && !window) {
        config.problem("a layer is local, but there is no window_size");
      }
      draft.by_layer.emplace_back([=](int64_t layer, Block& block) {
        block.attention.window = kinds[layer] == "local" ? window : std::nullopt;
      });
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      nlohmann::ordered_json kinds = nlohmann::ordered_json::array();
      for (const Block& block : draft.a.blocks) {
        kinds.push_back(block.attention.window ? "local" : "global");
      }
      config[key.name()] = nlohmann::ordered_json::array({nlohmann::ordered_json::array({kinds, 1})});
    }};

// transformers takes no null, also where no layer is local.
const Field window_size = {[](Config& config, const Key& key, Draft& draft) { field::window.read(config, key, draft); },
                           [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                             field::window.write(config, key, draft);
                             if (config[key.name()].is_null()) {
                               config[key.name()] = key.fallback.get<int64_t>();
                             }
                           }};

}  // namespace

const Family& family_gpt_neo() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "gpt_neo",
      .classes = "GPTNeo",
      .base_prefix = "transformer.",
      .model = {.embedding = {.position = Position::learned},
                .blocks = {{.attention = {.scale = 1, .bias = {.output = true}, .norm = layer_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}}},
                .final_norm = layer_norm()},
      .heads = decoder_heads({.tied = true, .tokens = "classifier"}),
      .keys =
          {
              {"vocab_size", vocab, 50257},
              {"max_position_embeddings", context, 2048},
              {"hidden_size", width, 2048},
              {{"num_layers", "num_hidden_layers"}, layers, 24},
              {{"num_heads", "num_attention_heads"}, heads, 16},
              {"intermediate_size", mlp_width},
              {"activation_function", activation, "gelu_new"},
              {"layer_norm_epsilon", epsilon, 1e-5},
              {"window_size", window_size, 256},
              {"attention_types", kinds_of_layers, json::parse(R"([[["global", "local"], 12]])")},
              {"is_causal", only(true, "GPT-Neo looks back only")},
          },
      .neutral = {"summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                  "summary_use_proj"},
      .tensors =
          {
              {"wte", "embed.token"},
              {"wpe", "embed.position"},
              {"h.{}.ln_1", "attention.norm"},
              {"h.{}.attn.attention.q_proj", "attention.query"},
              {"h.{}.attn.attention.k_proj", "attention.key"},
              {"h.{}.attn.attention.v_proj", "attention.value"},
              {"h.{}.attn.attention.out_proj", "attention.output"},
              {"h.{}.ln_2", "mlp.norm"},
              {"h.{}.mlp.c_fc", "mlp.up"},
              {"h.{}.mlp.c_proj", "mlp.down"},
              {"ln_f", "norm"},
          },
      .ignored = {"transformer.h.*.attn.attention.bias", "transformer.h.*.attn.attention.masked_bias"},
  });
  return family;
}

}  // namespace pare
