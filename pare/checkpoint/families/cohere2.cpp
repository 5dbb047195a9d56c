// Cohere's Command R7B and Command A: layers with a window, and in every fourth place one without, which has no
// positions.

#include "pare/checkpoint/families/shared/cohere_like.h"
#include "pare/checkpoint/families/shared/needed_window.h"

namespace pare {

static void read_windows(Config& config, const Key& key, Draft& draft) {
  config.neutral({key.name(), "sliding_window_pattern"});
  if (config.has(key.name())) {
    field::layer_types(nullptr).read(config, key, draft);
  } else {  // older files say how far the layers without a window are apart
    const int64_t pattern = config.integer("sliding_window_pattern", 4, 1, most::layers);
    const std::optional<int64_t> width = std::exchange(draft.block.attention.window, std::nullopt);
    draft.by_layer.emplace_back([=](int64_t layer, Block& block) {
      block.attention.window = (layer + 1) % pattern != 0 ? width : std::nullopt;
    });
  }
  draft.by_layer.emplace_back([](int64_t, Block& block) {
    if (!block.attention.window) {
      block.attention.rope.reset();
    }
  });
}

const Family& family_cohere2() {
  using namespace field;
  const std::string_view listed = "layer_types or sliding_window_pattern says which layers have a window";
  static const Family family = make_family(cohere_like({
      .model_type = "cohere2",
      .classes = "Cohere2",
      .keys =
          {
              {"sliding_window", needed_window, 4096},
              {"layer_types", Field{read_windows, layer_types(nullptr).write}},
              {"layer_switch", only(4, listed)},
              {"order_of_interleaved_layers", only("local_attn_first", listed)},
          },
  }));
  return family;
}

}  // namespace pare
