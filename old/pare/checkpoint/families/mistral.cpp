// Mistral: Llama with one window for all layers.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

constexpr LlamaLike mistral = {
    .model_type = "mistral",
    .classes = "Mistral",
    .width = 4096,
    .vocab = 32000,
    .context = 131072,
    .layers = 32,
    .heads = 32,
    .mlp_width = 14336,
    .kv_heads = 8,
    .stored_frequencies = true,
};

Architecture read_config(Config& config) {
  Architecture a = read_llama_like(config, mistral);
  const std::optional<int64_t> window = read_window(config);
  for (Block& block : a.blocks) {
    block.attention.window = window;
  }
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  nlohmann::ordered_json config = write_llama_like(a, mistral);
  const std::optional<int64_t> window = a.blocks.front().attention.window;
  config["sliding_window"] = window ? nlohmann::ordered_json(*window) : nullptr;
  return config;
}

}  // namespace

const Family& family_mistral() {
  static const Family family = llama_like_family<mistral>(read_config, write_config);
  return family;
}

}  // namespace pare
