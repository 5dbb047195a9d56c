// SmolLM 3: Llama in which every fourth layer has no positions.

#include <fmt/format.h>

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

// 1 where a layer turns its queries and keys, 0 where it has no positions.
const Field turning_layers = {
    [](Config& config, const Key& key, Draft& draft) {
      const int64_t interval = config.integer("no_rope_layer_interval", 4, 1, most::layers);
      const nlohmann::json list = config.raw(key.name());
      if (!list.is_null() && (!list.is_array() || std::ssize(list) != draft.layers)) {
        config.wrong(key.name(), list, fmt::format("a list of {} numbers, one for each layer", draft.layers));
        return;
      }
      std::vector<bool> turns;
      for (int64_t layer = 0; layer < draft.layers; ++layer) {
        turns.push_back(list.is_null() ? (layer + 1) % interval != 0 : list[layer] != 0 && list[layer] != false);
      }
      draft.by_layer.emplace_back([=](int64_t layer, Block& block) {
        if (!turns[layer]) {
          block.attention.rope.reset();
        }
      });
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      config[key.name()] = nlohmann::ordered_json::array();
      for (const Block& block : draft.a.blocks) {
        config[key.name()].push_back(block.attention.rope ? 1 : 0);
      }
    }};

// Where there is no list: of those without positions, if any is asked for.
const Field windows = {[](Config& config, const Key& key, Draft& draft) {
                         std::optional<int64_t>& window = draft.block.attention.window;
                         const bool any = config.flag("use_sliding_window", false) && window.has_value();
                         if (config.has(key.name())) {
                           field::layer_types(nullptr).read(config, key, draft);
                           return;
                         }
                         const std::optional<int64_t> width = std::exchange(window, std::nullopt);
                         draft.by_layer.emplace_back([=](int64_t, Block& block) {
                           block.attention.window = any && !block.attention.rope ? width : std::nullopt;
                         });
                       },
                       [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                         field::layer_types(nullptr).write(config, key, draft);
                         config["use_sliding_window"] = !config["sliding_window"].is_null();
                       }};

}  // namespace

const Family& family_smollm3() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "smollm3",
      .classes = "SmolLM3",
      .answers_prefix = "transformer.",
      .heads = decoder_heads({.tied = true}),
      .keys =
          {
              {"vocab_size", vocab, 128256},
              {"hidden_size", width, 2048},
              {"intermediate_size", mlp_width, 11008},
              {"num_hidden_layers", layers, 36},
              {"num_attention_heads", heads, 16},
              {"num_key_value_heads", kv_heads, 4},
              {"head_dim", head_width},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 32768},
              {"rms_norm_eps", epsilon, 1e-6},
              {"attention_bias", attention_bias, false},
              {"mlp_bias", mlp_bias, false},
              {"rope_parameters", rope({.theta = 2e6})},
              {"no_rope_layers", turning_layers},
              {"sliding_window", window},
              {"layer_types", windows},
          },
      // Which layers turn and which have a window is said above; the second only slices the same products.
      .neutral = {"max_window_layers", "pretraining_tp"},
  }));
  return family;
}

}  // namespace pare
