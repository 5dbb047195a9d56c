// The fields that say which layers look back how far.

#include "pare/checkpoint/fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace pare::field {

using nlohmann::ordered_json;

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
    const nlohmann::json type = types.is_null() ? nullptr : types[static_cast<size_t>(layer)];
    sliding.push_back(types.is_null() ? slides(layer) : type == "sliding_attention");
    if (!types.is_null() && !sliding.back() && type != "full_attention" && type != "attention") {
      config.wrong(fmt::format("{}[{}]", key, layer), type, "full_attention or sliding_attention");
    }
    if (sliding.back() && !window) {
      config.problem(fmt::format("layer {} is of the type sliding_attention, but there is no sliding_window", layer));
    }
  }
  draft.by_layer.emplace_back([=](int64_t layer, Block& block) {
    block.attention.window = sliding[static_cast<size_t>(layer)] ? window : std::nullopt;
  });
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

Field layer_types(bool (*slides)(int64_t)) {
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
      const auto first =
          std::find_if(blocks.begin(), blocks.end(), [](const Block& b) { return b.attention.window.has_value(); });
      config["use_sliding_window"] = first != blocks.end();
      config["max_window_layers"] = first - blocks.begin();
    }};

}  // namespace pare::field
