// Qwen 2: Llama with biases of queries, keys and values, and a window for some of its layers.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

constexpr LlamaLike qwen2 = {
    .model_type = "qwen2",
    .classes = "Qwen2",
    .width = 4096,
    .vocab = 151936,
    .context = 32768,
    .layers = 32,
    .heads = 32,
    .mlp_width = 22016,
    .kv_heads = 32,
    .answers_prefix = "transformer.",
};

Architecture read_config(Config& config) {
  Architecture a = read_llama_like(config, qwen2);
  for (Block& block : a.blocks) {
    block.attention.bias = {.query = true, .key = true, .value = true};
  }
  config.only("use_mrope", false, "positions of images are not supported");
  read_late_windows(config, a);
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  nlohmann::ordered_json config = write_llama_like(a, qwen2);
  write_late_windows(config, a);
  return config;
}

}  // namespace

const Family& family_qwen2() {
  static const Family family = llama_like_family<qwen2>(read_config, write_config);
  return family;
}

}  // namespace pare
